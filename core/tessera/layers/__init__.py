"""Layers: they bind ops once, know which part of a weight is theirs, and declare what the loader must bring. No device,
no loading, no format here."""
