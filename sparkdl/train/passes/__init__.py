"""Passes over the rows besides training: the dry run, evaluation, prediction, sums of weights."""
