"""Core's own features of requests; the registry names them as it names those of plugins."""
