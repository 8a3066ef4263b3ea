"""Plans of clusters for a training: a rehearsal on a sample, and a forecast from it."""
