"""What makes the fitted numbers that ship, and the coverage table, from the shipped records: `make calibrate`."""
