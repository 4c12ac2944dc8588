"""Ablation: the contribution of each feature of a strategy, and published effects reproduced."""
