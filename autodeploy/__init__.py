"""AutoDeploy: the best parallel strategy for training a model on a cluster, with trusted time and memory."""
