"""The partition store: files of columns on the executors, built by Spark jobs."""
