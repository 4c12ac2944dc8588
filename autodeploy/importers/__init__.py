"""Reads other tools' files into specs and plans, one file a format."""
