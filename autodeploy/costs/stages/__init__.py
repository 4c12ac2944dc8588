"""From layers to chunks and stages: classes, states of parameters, buffers, the problem of one candidate."""
