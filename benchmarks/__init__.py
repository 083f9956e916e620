"""Measurements; README.md says of what, and how."""
