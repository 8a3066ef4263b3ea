"""Combinations of options, of which some have every pair of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def in_pairs(every: int, **values: Sequence[Any] | Mapping[str, Any]) -> pytest.MarkDecorator:
    """Parametrize by all combinations of values; all but one in ``every`` get the mark ``slow``.

    The others have every pair of values: what two options break together, they find. A mapping has values by
    the ids that tests show.
    """
    named = [
        list(of.items()) if isinstance(of, Mapping) else [(str(value), value) for value in of]
        for of in values.values()
    ]
    params, fast = [], []
    for places in product(*(range(len(of)) for of in named)):
        chosen = [of[place] for of, place in zip(named, places, strict=True)]
        marks = [pytest.mark.slow] if sum(places) % every else []
        fast += [] if marks else [places]
        name = "-".join(name for name, _ in chosen)
        params.append(pytest.param(*(value for _, value in chosen), id=name, marks=marks))
    for a, b in combinations(range(len(named)), 2):
        assert len({(places[a], places[b]) for places in fast}) == len(named[a]) * len(named[b])
    return pytest.mark.parametrize(list(values), params)
