"""What a cluster would take for a training: a rehearsal on a sample, and a forecast from it."""
