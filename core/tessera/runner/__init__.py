"""On one device: a step's decision to token ids."""
