"""The one place of the core's version."""

__version__ = "0.1.0.dev0"
