"""Prefill and decode apart: caches of prompts that engines lend to each other."""
