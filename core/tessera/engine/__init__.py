"""The engine: one step after another, the process it lives in, and the front end that turns its tokens into answers."""
