"""One strategy: its step's time, parts and memory, and what changes them."""
