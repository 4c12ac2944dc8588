"""What frameworks did with exported plans on the CPU, on record."""
