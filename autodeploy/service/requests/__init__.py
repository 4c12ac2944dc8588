"""Requests of the network as documents of the product."""
