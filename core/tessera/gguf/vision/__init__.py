"""The towers of models that read images, in llama.cpp's files of their own (mmproj)."""
