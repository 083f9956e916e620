"""Models: what is computed between token ids and logits, and the table of families."""
