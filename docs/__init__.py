"""The documentation and what generates a part of it."""
