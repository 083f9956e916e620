"""Images in prompts: from the bytes that a client sends to what a model's vision tower takes, in a process of its own
with limits."""
