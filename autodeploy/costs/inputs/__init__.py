"""Inputs of formulas: model, run, machine, router, documents."""
