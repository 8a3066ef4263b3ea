"""Trials at work: one task each, or distributed fits."""
