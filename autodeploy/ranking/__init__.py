"""Orders evaluated plans, finds ties and the Pareto front, and explains."""
