"""Errors, text files, processes and settings that every package uses."""
