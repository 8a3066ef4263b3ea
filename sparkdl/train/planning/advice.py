"""Advice from where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl.train.options.config import TrainConfig

_MUCH = 0.15  # parts that take at least this share of a step are worth a change

_TAKES = {
    "rows": "Reading rows takes",
    "forward and backward": "Forward and backward take",
    "weights and gradient": "Copying weights and gradient takes",
    "update": "The optimizer takes",
    "waiting for the slowest rank": "Waiting for the slowest executor takes",
    "exchange": "The exchange of gradients takes",
    "scheduling": "Starting Spark's tasks takes",
}
_OF_SEVERAL = ("exchange", "waiting for the slowest rank")


def advice(
    parts: Mapping[str, float],
    layers: Sequence[Mapping[str, Any]],
    config: TrainConfig,
    exchange: str,
    transport: str,
    ranks: int,
) -> list[str]:
    """Return what to change, the largest part of a step first.

    ``parts`` and ``layers`` are seconds by what takes them; with one rank, nobody exchanges.
    """
    whole = sum(parts.values()) or 1.0
    found: list[str] = []
    for name in sorted(parts, key=lambda part: -parts[part]):
        share = parts[name] / whole
        if share >= _MUCH and name in _TAKES and (ranks > 1 or name not in _OF_SEVERAL):
            takes = f"{_TAKES[name]} {share:.0%} of a step."
            found.append(f"{takes} {_of(name, layers, config, exchange, transport, ranks)}")
    return found


def _of(
    name: str,
    layers: Sequence[Mapping[str, Any]],
    config: TrainConfig,
    exchange: str,
    transport: str,
    ranks: int,
) -> str:
    if name == "forward and backward":
        return f"{_largest(layers)}{_faster(config)}"
    if name == "exchange":
        return _less_exchange(config, exchange, transport)
    if name == "scheduling":
        if exchange == "driver":
            return "Start the session with sparkdl.session.builder(), so that one Spark job runs many steps."
        return (
            "Set a larger iterations_per_job or batch_size, and let hooks look at the weights less often: a "
            "Spark job ends where one does."
        )
    if name == "rows":
        return (
            "Do the work of transform= and collate= once, before you make the Dataset, and store smaller "
            "dtypes such as uint8 or float32."
        )
    if name == "update":
        if ranks > 1 and exchange != "sharded":
            return "Set exchange='sharded': each executor then updates a part of the weights."
        return "Set a larger batch_size, so that an epoch has fewer updates."
    if name == "waiting for the slowest rank":
        return (
            "Give each executor cores that no other program uses. If some machines are slower than others, "
            "set drop_stragglers, which leaves late rows out."
        )
    return "Set a larger batch_size, so that weights and gradient are copied less often in an epoch."


def _largest(layers: Sequence[Mapping[str, Any]]) -> str:
    seconds = sum(layer["forward"] + layer["backward"] for layer in layers)
    if not layers or not seconds:
        return ""
    first = layers[0]
    share = (first["forward"] + first["backward"]) / seconds
    kind = f", a {first['kind']}," if first["kind"] else ""
    return f"Layer {first['name']}{kind} has {share:.0%} of that. "


def _faster(config: TrainConfig) -> str:
    options = []
    if config.precision == "fp32":
        options.append("precision='bf16' where the processor has it")
    if not config.compile:
        options.append("compile=True")
    return "Use more executors or cores" + (f", or try {' and '.join(options)}." if options else ".")


def _less_exchange(config: TrainConfig, exchange: str, transport: str) -> str:
    options = []
    if config.gradient_codec == "fp32":
        options.append("gradient_codec='bf16'")
    if config.local_steps is None:
        options.append("local_steps=4")
    if exchange == "replicated":
        options.append("exchange='sharded', which pays with many executors")
    direct = ""
    if transport == "shuffle":
        direct = " Messages travel by Spark's shuffle: sparkdl doctor says why not directly, which is faster."
    tried = "".join(f", {option}" for option in options)
    return f"Use fewer executors, or try one of these: a larger batch_size{tried}.{direct}"
