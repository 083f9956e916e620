"""From files to filled slots: read, decode, shard, fuse, prepare; one slot at a time."""
