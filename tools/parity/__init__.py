"""Compares Tessera's decoder with transformers: tiny random models, the logits of every position and greedy tokens, for
every way of splitting the work."""
