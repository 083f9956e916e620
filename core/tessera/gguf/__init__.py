"""GGUF files, the model files of llama.cpp: the container, and the types of block that its tensors are stored in."""
