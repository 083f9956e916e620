"""Models: everything between token ids and logits, and the table of model families."""
