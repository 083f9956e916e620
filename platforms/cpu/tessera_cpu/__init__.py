"""Tessera on general-purpose processors, in torch."""
