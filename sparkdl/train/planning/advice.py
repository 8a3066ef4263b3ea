"""Advice from where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.train.options.config import TrainConfig

_MUCH = 0.15
"""Parts that take at least this share of a step are worth a change."""


def advice(
    parts: Mapping[str, float],
    layers: Sequence[Mapping[str, Any]],
    config: TrainConfig,
    exchange: str,
    transport: str,
) -> list[str]:
    """Return what to change, the largest part of a step first.

    Args:
        parts: seconds of a step by what takes them.
        layers: by the time that they take.
        config: the options.
        exchange: how gradients became weights.
        transport: how messages travelled.
    """
    whole = sum(parts.values()) or 1.0
    found: list[str] = []
    for name in sorted(parts, key=lambda part: -parts[part]):
        share = parts[name] / whole
        if share >= _MUCH:
            found += [
                f"{name} ({share:.0%}): {text}" for text in _of(name, layers, config, exchange, transport)
            ]
    return found


def _of(
    name: str, layers: Sequence[Mapping[str, Any]], config: TrainConfig, exchange: str, transport: str
) -> list[str]:
    if name == "forward and backward":
        said = []
        seconds = sum(layer["forward"] + layer["backward"] for layer in layers)
        if layers and seconds:
            first = layers[0]
            share = (first["forward"] + first["backward"]) / seconds
            said.append(f"layer {first['name']} ({first['kind'] or 'none'}) takes {share:.0%} of it")
        options = []
        if config.precision == "fp32":
            options.append("precision='bf16' where the processor has it")
        if not config.compile:
            options.append("compile=True")
        return [
            *said,
            "more executors or cores help; try " + ", ".join(options) if options else "more executors",
        ]
    if name == "exchange":
        options = ["a larger batch_size"]
        if config.gradient_codec == "fp32":
            options.append("gradient_codec='bf16'")
        if config.local_steps is None:
            options.append("local_steps=4")
        if exchange == "replicated":
            options.append("exchange='sharded' with many executors")
        if transport == "shuffle":
            options.append("transport='direct', see sparkdl doctor for why it is not taken")
        return ["fewer executors, or " + ", ".join(options)]
    if name == "scheduling":
        if exchange == "driver":
            return ["a session of sparkdl.session.builder() lets many steps be one job"]
        return ["larger iterations_per_job, fewer hooks that look at weights, or a larger batch_size"]
    if name == "rows":
        return ["do the work of transform= and collate= once, before the Dataset; store smaller dtypes"]
    if name == "update":
        return ["exchange='sharded' divides the update among the executors"]
    if name == "waiting for the slowest rank":
        return ["give executors equal cores of their own; see drop_stragglers= if some machines are slower"]
    return ["fewer buffers and smaller weights"]
