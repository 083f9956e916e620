"""The version of tessera-llm; the build reads it here, and nothing else states it."""

__version__ = "0.1.0.dev0"
