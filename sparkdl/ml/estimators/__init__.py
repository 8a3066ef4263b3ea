"""Estimators of modules and their fitted models."""
