"""Tessera: serves large language models on any vendor's chip."""
