"""Questions about one input, answered with the probability of each possible answer, which are read from the model's
first token instead of generated: OpenAI's Decisions API and the System One API."""
