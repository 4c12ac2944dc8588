"""Requests: who sends them, and the documents of the product that they hold."""
