"""Routes of models that answer with numbers: embeddings, scores, ranks and classes."""
