"""Optimizers on shards of the flat weights: runs, segments, packed rows."""
