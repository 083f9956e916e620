"""Tessera's decoder against transformers: tiny random models, every position's logits and greedy tokens, however the
work is cut."""
