"""Runs steps on one device: from a SchedulerOutput to token ids."""
