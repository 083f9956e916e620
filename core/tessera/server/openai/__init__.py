"""OpenAI's routes, one module per family."""
