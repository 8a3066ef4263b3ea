"""Predictions without Spark: :class:`Predictor`, the saved model behind columns, and the HTTP server.

The names load what they need when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.serve.predictor import Predictor as Predictor

__all__ = ["Predictor"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from sparkdl.serve.predictor import Predictor

        return Predictor
    raise AttributeError(f"module 'sparkdl.serve' has no attribute {name!r}")
