"""Schedulers of trials: successive halving, stopping, population-based training."""
