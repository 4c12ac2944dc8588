"""What users send: models, clusters, training runs and their documents."""
