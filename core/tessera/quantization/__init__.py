"""Weights in fewer bits: rounded as they are loaded, or read from a checkpoint that has them so. Of its modules only
formats and schemes can be imported without torch."""
