"""Digests of what the product answers: a change that should move nothing is held to them."""
