"""Texts as vectors: a model of Hugging Face as a stage."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.hf.extra import need
from sparkdl.hf.heads import Embedder
from sparkdl.hf.tokens import INPUTS
from sparkdl.ml.estimators.model import TorchModel
from sparkdl.nn.batch import group
from sparkdl.nn.signature import Signature


class EmbeddingModel(TorchModel):
    """Adds a column of vectors, ``array<float>``, for columns of tokens.

    ::

        embed = EmbeddingModel.of("models/bert", predictionCol="vector")
        vectors = embed.transform(tokenizer.transform(texts))

    The Python workers of an executor share its weights. Like any :class:`TorchModel` it is saved without a
    pickle, and has a ``predictor()``.
    """

    @classmethod
    def of(
        cls,
        model: nn.Module | str | os.PathLike[str],
        *,
        pooling: Literal["mean", "cls", "last"] = "mean",
        normalize: bool = False,
        **params: Any,
    ) -> Self:
        """Make a stage of a model.

        Args:
            model: of ``transformers`` or ``peft``, or a local folder with ``config.json`` and
                ``model.safetensors``, as ``save_pretrained`` writes them.
            pooling: ``"mean"`` over the text's tokens, ``"cls"`` for the first one, ``"last"`` for the last.
            normalize: whether vectors have length 1.
            **params: Params; by default ``featuresCols`` are ``input_ids`` and ``attention_mask``, and
                ``predictionCol`` is ``embedding``.

        Raises:
            ConfigError: if it is no such model, or the folder holds none that can be read without a pickle.
        """
        module = Embedder(model if isinstance(model, nn.Module) else _read(Path(model)), pooling, normalize)
        chosen = {"featuresCols": list(INPUTS[:2]), "predictionCol": "embedding", **params}
        stage = cls.from_module(module, **chosen)
        names = stage.featuresNames()
        rows = group([torch.ones(2, 3, dtype=torch.int64) for _ in names], stage._arguments())
        stage.signature = Signature.of_rows(stage.module, rows).of_any_length([True] * len(names))
        return stage


def _read(folder: Path) -> nn.Module:
    """Read a model from a local folder; neither a pickle nor code from it is run."""
    transformers = need("transformers", "EmbeddingModel")
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model={str(folder)!r}: expected a local folder with config.json and model.safetensors, as "
            "save_pretrained(folder) writes them"
        )
    try:
        found: nn.Module = transformers.AutoModel.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"model={str(folder)!r} cannot be read: {error}") from error
    return found
