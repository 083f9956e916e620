"""How checkpoints store quantized weights: one file for each format, listed in plugins/builtin.py."""
