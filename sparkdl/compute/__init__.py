"""What a task does by itself: rows, forward and backward pass, what it leaves on its executor."""
