"""Searches: submission, limits and the service."""
