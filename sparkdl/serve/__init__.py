"""Predictions without Spark: :class:`Predictor`, the saved model behind columns, and the HTTP server."""

from sparkdl.serve.predictor import Predictor

__all__ = ["Predictor"]
