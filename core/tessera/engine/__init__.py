"""The engine: its step loop, the process that runs it, and the front end that turns its tokens into completions."""
