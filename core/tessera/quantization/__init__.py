"""Quantized weights: rounded while they are loaded, or read from a quantized checkpoint. Only `formats` and `schemes`
can be imported without torch."""
