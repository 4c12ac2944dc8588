"""Strategies x workload x profile -> step time and memory, vectorised over strategies."""
