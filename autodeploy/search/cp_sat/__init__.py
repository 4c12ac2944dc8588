"""Models for CP-SAT. Importing one of them loads ortools: import it when solving."""
