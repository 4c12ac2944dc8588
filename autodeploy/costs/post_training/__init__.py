"""The model of one step of post-training by reinforcement learning."""
