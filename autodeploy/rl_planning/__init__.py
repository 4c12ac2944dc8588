"""Post-training by reinforcement learning, planned: layouts of update and generation, and where both run."""
