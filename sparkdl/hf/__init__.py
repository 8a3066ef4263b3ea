"""Models of Hugging Face: their outputs, their rebuilding from files, adapters, embeddings and generation.

Only what a program uses is imported: ``transformers`` and ``peft`` are the extra ``sparkdl[transformers]``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkdl.hf.heads import Embedder as Embedder
    from sparkdl.hf.heads import Generator as Generator

_HOME = {"Embedder": "sparkdl.hf.heads", "Generator": "sparkdl.hf.heads"}

__all__ = ["Embedder", "Generator"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'sparkdl.hf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
