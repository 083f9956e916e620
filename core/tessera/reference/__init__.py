"""Attention and other mixers over state in plain torch: the definition of what a backend computes, and the fallback."""
