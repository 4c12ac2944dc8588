"""The search over candidates: which are looked at, planned and bounded, in which order."""
