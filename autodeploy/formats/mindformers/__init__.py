"""Configurations of MindFormers, read and written."""
