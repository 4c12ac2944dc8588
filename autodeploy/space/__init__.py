"""The strategy space: its axes and the named rules that make a strategy legal."""
