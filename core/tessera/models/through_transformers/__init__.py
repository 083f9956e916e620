"""Models without an implementation of their own here: transformers' code, with this engine's attention, linear layers
and experts. Only this package imports transformers, and only when such a model is loaded."""
