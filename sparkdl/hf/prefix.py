"""The beginning that all texts of a batch share, such as an instruction, computed once for all of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_SHORTEST = 16
"""Copying keys and values of fewer tokens gains nothing."""


def shared_prefix(model: Any, ids: Tensor, mask: Tensor) -> Any:
    """Run a model on the tokens with which all texts begin.

    Args:
        model: a decoder of ``transformers`` or ``peft``.
        ids: tokens, shape (rows, length), each text at the end of its row.
        mask: 0 before it.

    Returns:
        The cache with which ``generate`` goes on: keys and values of the columns in which the longest text
        has its prefix. A shorter one has a part of it behind them, which is computed anew. ``None`` if there
        is too little to share, the model generates with another cache or none, or its cache holds anything
        but keys and values of all tokens, as that of a sliding window or a state does.
    """
    settings = getattr(model, "generation_config", None)
    if getattr(settings, "cache_implementation", None) or getattr(settings, "use_cache", None) is False:
        return None
    rows, length = ids.shape
    before = length - mask.sum(dim=1)  # of each row: columns without text
    count = _common(ids, before)
    if rows == 1 or count < _SHORTEST:
        return None
    longest = int(before.argmin())
    first = ids[longest, int(before[longest]) :][None, :count]
    output = model(input_ids=first, attention_mask=torch.ones_like(first), use_cache=True)
    cache: Any = getattr(output, "past_key_values", None)
    layers = getattr(cache, "layers", ())
    if type(cache).__name__ != "DynamicCache" or any(type(one).__name__ != "DynamicLayer" for one in layers):
        return None
    # Column j of a row is token j - before: keys know their position in the text, and not their column. What
    # stands where there is no text is masked.
    columns = torch.arange(int(before.min()) + count, device=ids.device)
    token = (columns - before[:, None]).clamp(min=0)
    shared = type(cache)()
    for number, layer in enumerate(layers):
        if layer.keys.ndim != 4 or layer.keys.shape[2] != count:
            return None
        keys, values = (part[0][:, token].transpose(0, 1) for part in (layer.keys, layer.values))
        shared.update(keys.contiguous(), values.contiguous(), number)
    return shared


def _common(ids: Tensor, before: Tensor) -> int:
    """Return how many tokens all texts begin with; each has at least one more."""
    length = ids.shape[1]
    count = int(length - before.max()) - 1
    if count < _SHORTEST:
        return 0
    columns = before[:, None] + torch.arange(count, device=ids.device)
    begins = ids.gather(1, columns)
    same = (begins == begins[:1]).all(dim=0)
    return count if bool(same.all()) else int(same.int().argmin())
