"""Lower bounds on step times, from those of a stage alone to those of layers in fractions under paths."""
