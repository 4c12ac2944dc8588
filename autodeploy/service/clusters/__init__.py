"""Clusters: overlays, calibration and evidence of their measured runs."""
