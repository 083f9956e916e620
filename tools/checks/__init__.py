"""What the architecture promises, as functions that take the root of a clone and return their findings, a line each."""
