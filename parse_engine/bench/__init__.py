"""Measurements: how much faster, and at what price."""
