"""The version of the core package, defined only here."""

__version__ = "0.1.0.dev0"
