"""A model and a training run as tables of operators, symbolic in the parallel degrees."""
