"""Logs, profiler output and benchmark tables."""
