"""Instructions that a decode step takes on ARM, counted in an emulator."""
