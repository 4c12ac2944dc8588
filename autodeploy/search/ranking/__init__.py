"""Ranking of evaluated plans: order, ties, Pareto front, intervals and explanations."""
