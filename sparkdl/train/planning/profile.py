"""``sparkdl profile``: a step taken apart, its bottleneck, and what to change."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkdl.access.base import described
from sparkdl.allreduce.outcome import within
from sparkdl.compute.stopwatch import ROW_UPDATE
from sparkdl.data.dataset import Dataset
from sparkdl.train.hooks.base import Hook
from sparkdl.train.hooks.of_run import none_of_every_run
from sparkdl.train.hooks.timeline import Timeline
from sparkdl.train.planning.advice import advice
from sparkdl.train.planning.layers import profile_first_rows
from sparkdl.train.planning.rehearsal import SAMPLE_STEPS, Stage
from sparkdl.train.shipped import shipped
from sparkdl.wire import frame

if TYPE_CHECKING:
    from sparkdl.train.run import Run
    from sparkdl.train.trainer import Trainer

_LAYERS_PROCESS = 1000  # process number of the layers in the trace; hosts have small ones
_TRACED = 20


class TaskSeconds(Hook):
    """Adds up the seconds of each rank's phases, of each step, by phase and rank."""

    def __init__(self) -> None:
        self.phases: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def on_iteration_end(self, run: Run) -> None:
        """Take the times of an iteration's tasks."""
        for task in run.outcome.tasks if run.outcome is not None else ():
            if task["kind"] == "forward-backward":
                for name, seconds in task["phases"].items():
                    self.phases[name][task["partition"]].append(seconds)


def profile_of(
    trainer: Trainer, data: Dataset, trace: str, *, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Train for some steps on a sample, and say for JSON where their time goes.

    Returns ``parts`` of a step in seconds, ``layers``, ``facts``, the ``bottleneck`` and ``advice``.
    """
    config, there = trainer.config, data.access.executors()
    stage = Stage(trainer, data, trainer._recipe.wanted(), seconds, tell)
    partitions = data.num_partitions if isinstance(data.num_partitions, int) else there.count
    rows = SAMPLE_STEPS * config.rows_per_iteration(config.batch_size, 0)
    with none_of_every_run(), stage.sample(rows, partitions) as sample:
        stage.pilot(sample, config.batch_size)
        watch = TaskSeconds()
        fit = stage.fit(sample, config.batch_size, "steps", [watch])
        job = stage.job(sample, fit, config.batch_size, {}) / fit.group
        events = _traced(stage, sample, config.batch_size) if trace else []
        tell("layers")
        layers, spans = _layers(trainer, sample, max(1, round(fit.rows)))
    parts = parts_of(watch.phases, fit.seconds, job, skip=fit.group)
    if fit.ranks == 1:  # which exchanges with nobody: jobs of one step leave nothing else
        parts["scheduling"] += parts["exchange"]
        parts["exchange"] = 0.0
    if trace:
        Path(trace).write_text(json.dumps([*events, *layer_events(spans)]), encoding="utf-8")
    facts = {
        "step": fit.seconds,
        "batch_size": config.batch_size,
        "ranks": fit.ranks,
        "threads": fit.threads,
        "exchange": fit.exchange,
        "transport": fit.transport,
        "steps_per_job": fit.group,
        "python_bytes": fit.python_bytes,
        "jvm_bytes": fit.jvm_bytes,
    }
    largest = max(parts, key=lambda name: parts[name])
    return {
        "name": type(trainer.module).__name__,
        "facts": facts,
        "parts": parts,
        "layers": layers,
        "bottleneck": largest,
        "advice": advice(parts, layers, config, fit.exchange, fit.transport, fit.ranks),
    }


def parts_of(
    phases: Mapping[str, Mapping[int, Sequence[float]]], step: float, job: float, skip: int = 0
) -> dict[str, float]:
    """Return seconds of a step by what takes them, which add up to it; ``skip`` first steps do not count."""
    own = {
        name: {rank: statistics.fmean(seconds[skip:] or seconds) for rank, seconds in ranks.items()}
        for name, ranks in phases.items()
    }
    of_rank: defaultdict[int, float] = defaultdict(float)
    for ranks in own.values():
        for rank, seconds in ranks.items():
            of_rank[rank] += seconds

    def mean(*names: str) -> float:
        return sum(statistics.fmean(own[name].values()) for name in names if own.get(name))

    slowest = max(of_rank.values(), default=0.0)
    found = {
        "rows": mean("data"),
        "forward and backward": mean("compute"),
        "weights and gradient": mean("weights_in", "gradient_out"),
        "update": mean("update", ROW_UPDATE),
        "waiting for the slowest rank": slowest - statistics.fmean(of_rank.values()) if of_rank else 0.0,
        "scheduling": job,
    }
    return within(found, step, "exchange")


def layer_events(spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the spans of a step's layers as events of Chrome's trace format."""
    process = {"pid": _LAYERS_PROCESS, "tid": 0}
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", **process, "args": {"name": "one step by layer"}}
    ]
    for thread, name in ((1, "forward"), (2, "backward")):
        events.append({"name": "thread_name", "ph": "M", **process, "tid": thread, "args": {"name": name}})
    for span in spans:
        events.append(
            {
                "name": span["name"],
                "ph": "X",
                **process,
                "tid": 2 if span["backward"] else 1,
                "ts": round(1e6 * span["start"]),
                "dur": round(1e6 * span["seconds"]),
            }
        )
    return events


def _traced(stage: Stage, sample: Dataset, batch: int) -> list[dict[str, Any]]:
    """Return the events of some steps, shifted to begin at 0."""
    stage.tell("trace")
    with tempfile.TemporaryDirectory(prefix="sparkdl-trace-") as folder:
        path = os.path.join(folder, "trace.json")
        stage.run(sample, batch, _TRACED, {}, [Timeline(path)])
        events: list[dict[str, Any]] = json.loads(Path(path).read_text())
    begin = min((event["ts"] for event in events if "ts" in event), default=0)
    return [event | {"ts": event["ts"] - begin} if "ts" in event else event for event in events]


def _layers(
    trainer: Trainer, sample: Dataset, rows: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return layers and spans of the first rank, while all ranks do the same."""
    recipe, module = trainer._recipe, trainer.module
    access, spec = sample.access, recipe.spec(sample.plan, module, sample.transform, sample.collate)
    with shipped(access, sample.store(), spec) as ship, described(access, "sparkdl: profile layers"):
        task = partial(profile_first_rows, ship.fit, rows)
        frames = access.stage(ship.store.tokens, task, ship.sent.broadcasts, profile=ship.profile)
        first = frame.unpack(access.collect(frames)[0])
    return list(first.meta["layers"]), list(first.meta["spans"])
