"""Models of Hugging Face: their outputs, their rebuilding from files, adapters, embeddings and generation.

Only what a program uses is imported: ``transformers`` and ``peft`` are the extra ``sparkdl[transformers]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkdl.lazy import lazy

if TYPE_CHECKING:
    from sparkdl.hf.heads import Embedder as Embedder
    from sparkdl.hf.heads import Generator as Generator

_HOMES = {
    "sparkdl.hf.heads": "Embedder Generator",
}

__all__, __getattr__, __dir__ = lazy(__name__, _HOMES)
