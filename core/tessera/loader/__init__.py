"""From files to filled parameters: read, decode, shard, fuse, prepare; one parameter at a time."""
