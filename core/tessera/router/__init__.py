"""`tessera router`: one address for several servers of one model, each request to the one that has most of its prompt
cached."""
