"""Who runs a step: in this process, or in one process a worker."""
