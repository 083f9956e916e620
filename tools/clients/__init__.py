"""Runs clients and agents that people use, unmodified, against a server whose model is scripted."""
