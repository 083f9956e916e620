"""OpenAI's routes, one module a family."""
