"""What is deployed, held against the tools that deploy it."""
