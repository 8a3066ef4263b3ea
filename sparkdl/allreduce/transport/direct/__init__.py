"""The direct transport: a group is one Spark stage, whose running tasks send each other messages."""
