"""The run of weeks that a plan is for: phases, failures, checkpoints, price and power."""
