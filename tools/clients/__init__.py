"""Runs clients and agents that people use, unmodified, against servers of scripted models, or of a tiny random one."""
