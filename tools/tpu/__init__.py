"""The environment in which platforms/tpu is tested, and what libtpu compiles there."""
