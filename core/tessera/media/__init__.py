"""Images and the like in prompts: what a front end makes of them, and what an engine takes."""
