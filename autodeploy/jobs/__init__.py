"""Running searches: the runners, and what one run does."""
