"""What quantised weights cost a model."""
