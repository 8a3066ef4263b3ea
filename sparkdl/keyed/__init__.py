"""Tables from 64-bit ids to rows, without Spark and torch: where an id lies, its first row, who owns it."""
