"""Creates the bundled demo model: training data, training and evaluation."""
