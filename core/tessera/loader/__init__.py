"""From checkpoint files to parameters: read, decode, shard, fuse and prepare, one parameter at a time."""
