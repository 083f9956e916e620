"""OpenAI's Responses API and its conversations."""
