"""A Jinja sandbox whose templates are bounded in time, memory and output, inside the calling thread.

A template is foreign code: it comes with a model folder, or with a request. Killing a thread is not possible in
Python, so a template must never be able to start a single operation that is large. The parts:

- `budget`: what one rendering may still spend, and how large a value is before something walks through it.
- `compiler`: compiles a template so that every operation on a value goes through the environment.
- `environment`: those operations: check the budget, do it, charge for the result.
- `filters`, `methods`, `functions`: what a template may call, and what each call costs at most.
"""
