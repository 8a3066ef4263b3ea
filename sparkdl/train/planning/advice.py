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
    several = ranks > 1
    scheduling = (
        "Set a larger iterations_per_job or batch_size, and let hooks look at the weights less often: a "
        "Spark job ends where one does."
    )
    if exchange == "driver":
        scheduling = (
            "Start the session with sparkdl.session.builder(), so that one Spark job runs many steps."
        )
    update = "Set a larger batch_size, so that an epoch has fewer updates."
    if several and exchange != "sharded":
        update = "Set exchange='sharded': each executor then updates a part of the weights."
    remedies = {
        "rows": "Do the work of transform= and collate= once, before you make the Dataset, and store smaller "
        "dtypes such as uint8 or float32.",
        "forward and backward": f"{_largest(layers)}{_faster(config)}",
        "weights and gradient": "Set a larger batch_size, so that weights and gradient are copied less often "
        "in an epoch.",
        "update": update,
        "waiting for the slowest rank": "Give each executor cores that no other program uses. If some "
        "machines are slower than others, set drop_stragglers, which leaves late rows out.",
        "exchange": _less_exchange(config, exchange, transport),
        "scheduling": scheduling,
    }
    whole = sum(parts.values()) or 1.0
    return [
        f"{_TAKES[name]} {parts[name] / whole:.0%} of a step. {remedies[name]}"
        for name in sorted(parts, key=lambda part: -parts[part])
        if parts[name] / whole >= _MUCH and name in _TAKES and (several or name not in _OF_SEVERAL)
    ]


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
