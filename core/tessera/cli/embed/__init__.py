"""`tessera embed`: vectors of texts, and how similar they are."""
