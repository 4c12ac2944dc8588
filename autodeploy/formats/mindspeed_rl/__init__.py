"""Configurations of MindSpeed-RL, read and written."""
