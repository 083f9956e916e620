"""The maker of the bundled demo model: what it is taught, how, and how well it answers."""
