"""Planning of post-training by reinforcement learning: layouts of update and generation, and their placement."""
