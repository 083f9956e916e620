"""What all child processes have in common: how they are started and ended, what they do when their parent is gone, and
how messages and errors get from one process to another."""
