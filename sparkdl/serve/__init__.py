"""Predictions without Spark: :class:`Predictor`, the saved model behind columns, and the HTTP server.

The names load what they need when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.lazy import lazy

if TYPE_CHECKING:
    from sparkdl.serve.predictor import Predictor as Predictor

_HOMES = {
    "sparkdl.serve.predictor": "Predictor",
}

__all__, __getattr__, __dir__ = lazy(__name__, _HOMES)
