"""Launches of MindSpeed-LLM's FSDP2 backend, read and written."""
