"""Callers: keys, teams and the audit log."""
