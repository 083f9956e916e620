"""Tessera on a GPU beside the card's own speeds: `python -m benchmarks.gpu`."""
