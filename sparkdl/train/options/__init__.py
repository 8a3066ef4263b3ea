"""The options of a Trainer, checked when they are given."""
