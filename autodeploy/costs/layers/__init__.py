"""One layer of every candidate: operators, exchanges, pairs, memory choices."""
