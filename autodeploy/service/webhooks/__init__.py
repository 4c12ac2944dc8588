"""Webhooks: targets, sender and the service."""
