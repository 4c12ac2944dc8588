"""Frameworks asked themselves: their parsers and validators over launch scripts, and tables of their flags."""
