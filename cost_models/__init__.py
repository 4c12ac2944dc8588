"""Pure numpy formulas of time and memory: numbers in, numbers out."""
