"""The HTTP server of ``sparkdl serve``: a saved model behind JSON and Arrow, without Spark."""
