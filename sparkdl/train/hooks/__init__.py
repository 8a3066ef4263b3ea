"""Hooks: methods that a run calls at its turning points, and ready-made hooks."""
