"""Replicas that serve traffic, simulated: the scheduler, the KV cache, the prefix cache and the router are core's own;
only the clock and the device are models."""
