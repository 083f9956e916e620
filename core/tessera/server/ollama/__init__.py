"""Ollama's API, for tools that were made for it."""
