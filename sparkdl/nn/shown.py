"""A module's layers as a table for notebooks."""

from __future__ import annotations

from torch import nn

from sparkdl import html

_MOST = 30


def layers(module: nn.Module) -> str:
    """Return a table of a module's parameters by layer: name, class, number, how many are trained."""
    rows: list[tuple[object, ...]] = []
    for name, child in module.named_modules():
        own = list(child.parameters(recurse=False))
        if own:
            shapes = ", ".join(f"{n} {list(p.shape)}" for n, p in child.named_parameters(recurse=False))
            trained = sum(p.numel() for p in own if p.requires_grad)
            rows.append((name or "(itself)", type(child).__name__, shapes, _count(own), f"{trained:,}"))
    if len(rows) > _MOST:
        left = len(rows) - _MOST
        rows = [*rows[:_MOST], (f"... {left} more", "", "", "", "")]
    return html.table(["layer", "class", "shapes", "parameters", "trained"], rows)


def size(module: nn.Module) -> str:
    """Return the number of a module's parameters."""
    return _count(list(module.parameters()))


def _count(parameters: list[nn.Parameter]) -> str:
    return f"{sum(p.numel() for p in parameters):,}"
