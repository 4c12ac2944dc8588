"""What-if questions: improvements of a launch, cards for a deadline, other clusters. Pure functions."""
