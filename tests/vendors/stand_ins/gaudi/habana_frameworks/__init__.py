"""Stands in for SynapseAI's extension of torch: names and arguments that are documented, computed in plain torch on a
made-up device. Nothing here is the vendor's."""
