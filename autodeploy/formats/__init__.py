"""Import of other tools' files as specs and plans, one module per format."""
