"""A kit to measure one's own machines: a self-contained script, and the profile's numbers fitted to its file."""
