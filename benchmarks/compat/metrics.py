"""Metrics of torchmetrics: states of three partitions, merged, against one pass over all rows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torchmetrics import Metric

from compat.compare import LAYOUTS, ROWS, Outcome
from sparkdl.exceptions import SparkdlError
from sparkdl.metrics.merge import check_mergeable, merge, pack
from sparkdl.metrics.spec import metric_specs, scores
from sparkdl.wire import frame

_DOMAINS = [
    "aggregation",
    "classification",
    "regression",
    "retrieval",
    "text",
    "image",
    "audio",
    "clustering",
    "nominal",
    "segmentation",
    "detection",
    "shape",
    "video",
    "multimodal",
]
_NETWORKS = (
    *("BERTScore", "CLIP", "InfoLM", "Frechet", "Kernel", "Inception", "Perceptual", "LPIPS"),
    *("DNS", "NISQA", "PESQ", "NonIntrusive"),
)

_draw = np.random.default_rng(6)


def _floats(*shape: int, low: float = 0.05, high: float = 0.95) -> torch.Tensor:
    return torch.from_numpy(_draw.uniform(low, high, size=(ROWS, *shape)).astype(np.float32))


def _classes(count: int, *shape: int) -> torch.Tensor:
    return torch.from_numpy(_draw.integers(count, size=(ROWS, *shape)))


_words = [
    " ".join(_draw.choice(["the", "a", "cat", "dog", "sat", "on", "mat", "under", "table", "red"], size=6))
    for _ in range(2 * ROWS)
]
_logits = torch.softmax(_floats(3), 1)
_groups = torch.from_numpy(np.sort(_draw.integers(7, size=ROWS)))
FEEDS: dict[str, tuple[Any, ...]] = {
    "values": (_floats(),),
    "numbers": (_floats(), _floats()),
    "rows of numbers": (_floats(4), _floats(4)),
    "binary": (_floats(), _classes(2)),
    "classes": (_logits, _classes(3)),
    "labels": (_floats(3), _classes(2, 3)),
    "clusters": (_classes(3), _classes(3)),
    "ranked": (_floats(), _classes(2), _groups),
    "binary groups": (_floats(), _classes(2), _classes(2)),
    "embedded": (_floats(4), _classes(3)),
    "texts": (_words[:ROWS], _words[ROWS:]),
    "references": (_words[:ROWS], [[word] for word in _words[ROWS:]]),
    "images": (_floats(3, 24, 24), _floats(3, 24, 24)),
    "large images": (_floats(3, 180, 180), _floats(3, 180, 180)),
    "signals": (_floats(400, low=-1, high=1), _floats(400, low=-1, high=1)),
    "mixed signals": (_floats(2, 400, low=-1, high=1), _floats(2, 400, low=-1, high=1)),
    "masks": (_classes(2, 3, 8, 8), _classes(2, 3, 8, 8)),
    "ratings": (_classes(3, 5),),
    "tokens": (torch.log_softmax(_floats(5, 7), 2), _classes(7, 5)),
    "points": (_floats(10, 3), _floats(10, 3)),
    "one image": (_floats(3, 24, 24),),
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"num_classes": 3},
    {"num_labels": 3},
    {"num_outputs": 4},
    {"task": "multiclass", "num_classes": 3},
    {"task": "binary"},
    {"p": 2.0},
    {"num_groups": 2},
    {"min_recall": 0.3},
    {"num_classes": 3, "min_recall": 0.3},
    {"num_labels": 3, "min_recall": 0.3},
    {"min_precision": 0.3},
    {"num_classes": 3, "min_precision": 0.3},
    {"num_labels": 3, "min_precision": 0.3},
    {"min_specificity": 0.3},
    {"num_classes": 3, "min_specificity": 0.3},
    {"num_labels": 3, "min_specificity": 0.3},
    {"min_sensitivity": 0.3},
    {"num_classes": 3, "min_sensitivity": 0.3},
    {"num_labels": 3, "min_sensitivity": 0.3},
    {"beta": 2.0},
    {"num_classes": 3, "beta": 2.0},
    {"num_labels": 3, "beta": 2.0},
]


@dataclass(frozen=True)
class Measured:
    """A class of torchmetrics; see :class:`compat.compare.Entry`."""

    name: str
    cls: Any
    domain: str
    family: str = "torchmetrics"

    def run(self, _: Any) -> Outcome:
        """Compute it in parts and as a whole."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _fed(self.cls, self.domain)
            return found if isinstance(found, Outcome) else _compare(*found)


def metrics() -> Iterator[Measured]:
    """Return an entry of each public class."""
    seen: set[Any] = set()
    for domain in _DOMAINS:
        module = import_module(f"torchmetrics.{domain}")
        for name in getattr(module, "__all__", ()):
            cls = getattr(module, name)
            if isinstance(cls, type) and issubclass(cls, Metric) and cls not in seen:
                seen.add(cls)
                yield Measured(name, cls, domain)


def _fed(cls: Any, domain: str) -> Any:
    """Return a metric without state, and the arguments of an update that it takes."""
    if any(word in cls.__name__ for word in _NETWORKS):
        return Outcome("not fed", "needs a network's weights, or a package beside torchmetrics")
    reason = ""
    accepted = inspect.signature(cls.__init__ if "__new__" not in vars(cls) else cls.__new__).parameters
    required = {n for n, p in accepted.items() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD}
    for options in OPTIONS:
        if not set(options) <= set(accepted) and "kwargs" not in accepted:
            continue
        if not required - {"self", "cls"} <= set(options):
            continue
        for name, feed in FEEDS.items():
            if ("image" in name) != (domain == "image") or ("signal" in name) != (domain == "audio"):
                continue
            try:
                metric = cls(**options)
                fresh = metric.clone()
                fresh.update(*(part[:12] for part in feed))
                fresh.update(*(part[12:] for part in feed))
                values = scores("m", fresh)
            except Exception as error:
                reason = reason or f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
                continue
            if any(np.isfinite(list(values.values()))):
                return metric, feed
    return Outcome("not fed", reason or "no feed of this table has what it needs")


def _compare(metric: Any, feed: tuple[Any, ...]) -> Outcome:
    update: Callable[[Any], None] = lambda m: m.update(*(part[:8] for part in feed))  # noqa: E731
    try:
        (spec,) = metric_specs({"m": metric}).values()
        check_mergeable("m", spec.metric, update)
    except SparkdlError as error:
        return Outcome("refused", f"{type(error).__name__}: {' '.join(str(error).split())[:220]}")
    whole, parts, start = metric.clone(), [], 0
    try:
        for size in LAYOUTS[1]:
            own = metric.clone()
            for lo, hi in ((start, start + 4), (start + 4, start + size)):
                batch = [part[lo:hi] for part in feed]
                own.update(*batch)
                whole.update(*batch)
            start += size
            table, arrays = pack({"m": own})
            parts.append(frame.unpack(frame.join(frame.pack({"states": table}, arrays))))
        expected, merged = scores("m", whole), metric.clone()
        merge({"m": merged}, parts)
        found = scores("m", merged)
    except SparkdlError as error:
        return Outcome("refused", f"{type(error).__name__}: {' '.join(str(error).split())[:220]}")
    if found.keys() != expected.keys():
        return Outcome("different", f"{found} instead of {expected}"[:300])
    pairs = [(found[name], value) for name, value in expected.items()]
    if all(a == b or (a != a and b != b) for a, b in pairs):
        return Outcome("equal")
    apart = max(abs(a - b) / max(abs(b), 1e-3) for a, b in pairs if b == b)
    if apart < 1e-5:
        return Outcome("rounding", "sums of floating-point numbers in another order, within 1e-5")
    return Outcome("different", f"{apart:.1e} from one pass: {found} instead of {expected}"[:300])
