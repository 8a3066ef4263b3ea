"""Access to the cluster behind a Spark Connect server: DataFrames of frames, and ``mapInArrow``."""
