"""Typed HTTP client of the service."""
