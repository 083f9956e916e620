"""What every API that generates shares: from a request's fields to the model's outputs."""
