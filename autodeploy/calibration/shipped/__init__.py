"""Programs that make the shipped numbers and the coverage table from the shipped records: `make calibrate`."""
