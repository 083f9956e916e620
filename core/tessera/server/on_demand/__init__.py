"""Several models by name: each is loaded when a request asks for it, and unloaded when others need its room."""
