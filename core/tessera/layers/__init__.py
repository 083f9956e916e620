"""Layers bind ops once, know which part of each weight belongs to this rank, and declare what the loader must provide.
They know nothing of devices, loading or file formats."""
