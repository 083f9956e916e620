"""OpenAI's files and batches: many requests in one file, answered while nothing else wants the engine."""
