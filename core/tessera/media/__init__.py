"""Images, videos and sounds in prompts: from the bytes that a client sends to what a model's towers take, in a process
of its own with limits."""
