"""The work of a single task: rows, forward and backward pass, files on its executor."""
