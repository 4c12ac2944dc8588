"""Documents: specs of models, clusters and training runs, strategies, plans, records and answers."""
