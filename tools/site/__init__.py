"""Builds the documentation as a site, and checks it: `python -m tools.site`."""
