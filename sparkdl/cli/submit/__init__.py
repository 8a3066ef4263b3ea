"""``sparkdl submit``: a job file and a command line become one spark-submit."""
