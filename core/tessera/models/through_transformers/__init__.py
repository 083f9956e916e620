"""Causal models that have no file of their own here: transformers' code, with this engine's attention, products and
experts in it. The only place that imports transformers, and only when such a model is loaded."""
