"""Panels of series: their grid, scales and windows, forecasts, backtests and anomalies."""
