"""Launches of verl, read and written."""
