"""Sampling of tokens that follows from each row, and not from the batch or the task that it is in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_numbers: ContextVar[NDArray[np.int64] | None] = ContextVar("sparkdl row numbers", default=None)
_WARPERS = {
    "temperature": ("TemperatureLogitsWarper", 1.0),
    "top_h": ("TopHLogitsWarper", None),
    "top_k": ("TopKLogitsWarper", 0),
    "top_p": ("TopPLogitsWarper", 1.0),
    "min_p": ("MinPLogitsWarper", None),
    "typical_p": ("TypicalLogitsWarper", 1.0),
    "epsilon_cutoff": ("EpsilonLogitsWarper", 0.0),
    "eta_cutoff": ("EtaLogitsWarper", 0.0),
}
"""Options that change the odds, in the order of transformers, with its classes and what changes nothing."""

_TOP_K = 50  # of transformers, if nothing is said


@contextmanager
def numbered(numbers: NDArray[np.int64] | None) -> Iterator[None]:
    """Let the rows of calls inside of ``with`` have these numbers; by default they are counted from 0."""
    token = _numbers.set(numbers)
    try:
        yield
    finally:
        _numbers.reset(token)


def seeds_of(input_ids: Tensor, mask: Tensor, seed: int) -> list[int]:
    """Return a seed for each row: of its text and its number."""
    found, numbers = [], _numbers.get()
    numbers = np.arange(len(input_ids)) if numbers is None else numbers
    rows = zip(input_ids.tolist(), mask.tolist(), numbers.tolist(), strict=True)
    for ids, used, number in rows:
        text = [token for token, here in zip(ids, used, strict=True) if here]
        digest = hashlib.blake2b(repr((seed, number, text)).encode(), digest_size=8)
        found.append(int.from_bytes(digest.digest(), "little") >> 1)
    return found


def sampled(model: Any, options: Mapping[str, Any], seeds: Sequence[int], steps: int) -> dict[str, Any]:
    """Return options of ``generate`` that sample each row by its own seed."""
    from transformers import LogitsProcessorList
    from transformers.generation import logits_process

    left = {name: value for name, value in options.items() if name not in _WARPERS}
    processors: list[Any] = []
    for name, (kind, nothing) in _WARPERS.items():
        value = options.get(name, getattr(getattr(model, "generation_config", None), name, None))
        value = _TOP_K if value is None and name == "top_k" else value
        if value is not None and value != nothing:
            processors.append(getattr(logits_process, kind)(value))
    processors.append(_Draw(seeds, steps))
    return {**left, "do_sample": False, "logits_processor": LogitsProcessorList(processors)}


class _Draw:
    """Draws the next token of each row, and leaves no choice but that."""

    def __init__(self, seeds: Sequence[int], steps: int) -> None:
        draws = [np.random.default_rng(seed).random(steps) for seed in seeds]
        self._draws, self._step = torch.from_numpy(np.array(draws)), 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores with a single finite one in each row."""
        sums = torch.softmax(scores.double(), dim=-1).cumsum(dim=-1)
        drawn = self._draws[:, self._step, None].to(sums) * sums[:, -1:]
        self._step += 1
        token = torch.searchsorted(sums, drawn, right=True).clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter(1, token, 0.0)
