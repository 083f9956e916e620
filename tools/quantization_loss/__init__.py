"""Measures how much quality quantization costs a model."""
