"""What formulas read: model, run, machine, router, documents."""
