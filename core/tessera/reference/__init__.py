"""Attention and state mixers in plain torch: the reference definition of what a backend computes, and the fallback."""
