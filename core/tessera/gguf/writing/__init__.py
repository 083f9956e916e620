"""A model of transformers as a GGUF file: its settings, its vocabulary, its tensors' names and their types of block.
What is written is what the rest of this package reads, and llama.cpp."""
