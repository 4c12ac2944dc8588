"""Choices of a placement: layouts of layers, memory options, and the effort of a search."""
