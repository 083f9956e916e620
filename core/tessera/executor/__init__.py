"""Executors: run steps in the engine's process, or in one process per worker."""
