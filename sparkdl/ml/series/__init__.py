"""Forecasts of panels of series as stages."""
