"""How checkpoints store weights that they have quantized, a file a format; the table is in plugins/builtin.py."""
