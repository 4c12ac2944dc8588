"""The whole training run of a plan: phases, failures, checkpoints, price and power."""
