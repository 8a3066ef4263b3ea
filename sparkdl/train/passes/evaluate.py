"""Evaluation: loss and metrics over all rows of a Dataset, as one Spark job.

Each task updates metrics of its own on its partition, batch by batch, and sends their states. The
driver merges these and computes the scores, so that they are those of a single pass.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from sparkdl.access.base import Access, BytesRef, Published
from sparkdl.compute.spec import FitSpec
from sparkdl.compute.worker import FitRef, Worker
from sparkdl.data.dataset import Dataset
from sparkdl.data.store import partition as store
from sparkdl.exceptions import ConfigError, ModelError, SparkdlWarning
from sparkdl.metrics import LOSS
from sparkdl.metrics.logits import Logits, mixed, total
from sparkdl.metrics.loss import Loss
from sparkdl.metrics.merge import agree, check_mergeable, merge, pack
from sparkdl.metrics.spec import AnyMetric, Metrics, MetricSpec, metric_specs, scores
from sparkdl.nn import serialize
from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import evaluate
from sparkdl.nn.losses import takes_logits
from sparkdl.nn.meeting import MeetingWatch, watch
from sparkdl.nn.objective import LossObjective
from sparkdl.nn.trace import describe as say
from sparkdl.train.history import RESERVED
from sparkdl.train.passes.dry_run import check_shapes, refuse, some_rows
from sparkdl.train.passes.sweep import BatchReader, evaluating, located, output_of, rows_per_batch, sweep
from sparkdl.wire import frame
from sparkdl.wire.frame import Parts


@dataclass(frozen=True, slots=True)
class Evaluate:
    """The task of one evaluation, the same for all partitions."""

    fit: FitRef  # the fixed part
    weights: BytesRef  # weights to evaluate
    metrics: BytesRef  # the pickled metrics
    reader: BytesRef  # the Dataset's pickled reader
    batch_size: int  # rows per forward pass
    epoch: int = 0  # completed epochs
    iteration: int = 0  # completed iterations
    logits: tuple[str, ...] = ()  # names of metrics whose outputs are logits, as far as that is known

    def __call__(self, partition: int, frames: Iterator[bytes]) -> Iterator[bytes | Parts]:
        """Yield the states of the metrics over a partition's rows."""
        (token,) = [store.Token.from_frame(frame.unpack(data)) for data in frames]
        worker = self.fit.worker()
        yield self._states(partition, token, worker)
        worker.end_task()

    def _states(self, partition: int, token: store.Token, worker: Worker) -> Parts:
        specs: dict[str, MetricSpec] = serialize.loads(self.metrics.read())
        reader: BatchReader = serialize.loads(self.reader.read())
        logged, logits = Logged(), Logits(self.logits, gives_logits(worker.spec))
        if token.rows:
            try:
                with evaluating(worker, self.weights, partition) as replica:
                    for rows, _, batch in reader.batches(token, self.batch_size, replica.module):
                        with located(token, rows):
                            batch = replace(batch, epoch=self.epoch, iteration=self.iteration)
                            measure(worker.spec, replica, batch, specs, logged, logits)
            except store.PartitionMissingError:
                return store.missing(partition)
        states, arrays = pack({name: spec.metric for name, spec in specs.items()})
        meta = {"kind": "states", "partition": partition, "states": states}
        meta |= {"logged": logged.sums, "logits": logits.seen}
        return frame.pack(meta, arrays)


def forward(
    spec: FitSpec, replica: FlatModule, batch: Batch
) -> tuple[tuple[float, float] | None, Any, Mapping[str, tuple[float, float]]]:
    """Return the mean loss of a batch and its weight, the module's output, and what its step logs as scores.

    The weight is what the loss, or a score, has been divided by. The loss is ``None`` if the batch has not
    the label that the run trains with, and compares with the inputs if the run trains without one, although
    the batch may have a label for the metrics.
    """
    if spec.label.kind != "none" and batch.label is None:
        return None, output_of(replica, batch), {}
    seen = batch if spec.label.kind != "none" else replace(batch, label=None)
    found = evaluate(replica, seen, spec.objective)
    weight = batch.rows if batch.weight is None else batch.weight.double().sum()
    loss = found.loss.item(), float(weight) if found.divisor is None else found.divisor
    extras = found.extras if spec.objective.scores else {}
    scores = {name: (value, found.divisors.get(name, batch.rows)) for name, value in extras.items()}
    return loss, found.output, scores


def gives_logits(spec: FitSpec) -> bool:
    """Return whether a run's module is known to give logits: its loss takes them, of the label."""
    objective = spec.objective
    return isinstance(objective, LossObjective) and spec.label.kind != "none" and takes_logits(objective.loss)


def measure(
    spec: FitSpec,
    replica: FlatModule,
    batch: Batch,
    metrics: Mapping[str, MetricSpec],
    logged: Logged,
    logits: Logits,
) -> Any:
    """Add one batch to all metrics; raises ModelError naming the layer or metric that fails."""
    loss, output, extras = forward(spec, replica, batch)
    logged.add(extras)
    for name, metric in metrics.items():
        if not isinstance(metric.metric, Loss):
            _update(name, metric, output, batch, logits)
        elif loss is not None:  # of rows of which none counts, it may be NaN
            metric.metric.update(*(loss if loss[1] else (0.0, 0.0)))
    return output


def _update(name: str, metric: MetricSpec, output: Any, batch: Batch, logits: Logits) -> None:
    if output is None:
        raise ModelError(
            f"metric {name!r} has nothing to measure: the step must return a dict with the module's 'output' "
            "beside the 'loss'",
            code="model-output",
        )
    try:
        logits.update(name, metric, output, batch.label, batch.inputs)
    except Exception as error:
        given = "inputs" if batch.label is None else "label"
        found = say(batch.inputs if batch.label is None else batch.label)
        raise ModelError(
            f"metric {name!r} ({type(metric.metric).__name__}) failed on output {say(output)} and "
            f"{given} {found}: {error!r}. Bring them into the shape that it expects with MetricSpec(metric, "
            "prepare=lambda output, label, inputs: (preds, target))",
            code="model-output",
        ) from error


class Evaluator:
    """Evaluates weights on Datasets, with the metrics of one fit.

    Metrics have the loss always. ``batch_size`` is rows per forward pass; by default 1 MiB of stored rows,
    from 32 to 4096. Raises ConfigError for a bad metric or a name that is taken, SerializationError if one
    cannot be shipped.
    """

    def __init__(
        self,
        access: Access,
        fit: FitRef,
        sent: Published,
        metrics: Metrics | None,
        batch_size: int | None = None,
        profile: Any = None,
    ) -> None:
        self._access = access
        self._fit = fit
        self._sent = sent
        self._specs = with_loss(metrics)
        self._batch_size = batch_size
        self._profile = profile
        self._metrics = access.send(serialize.dumps(self._specs, "metrics"))
        self._readers: dict[str, Published] = {}

    def run(
        self, data: Dataset, weights: Published, describe: str, epoch: int = 0, iteration: int = 0
    ) -> dict[str, float]:
        """Evaluate weights on all rows of a Dataset; return values by score.

        These are ``loss`` if the rows have the label it needs, those of metrics, and what a
        ``validation_step`` logs. Raises ModelError naming a layer or metric, ConfigError if a metric's states
        cannot be merged, DataError if partitions stay missing, TaskError for others.
        """
        reader = self._reader(data)
        data.store()  # before row_bytes: the first rows may decide on dtypes
        task = Evaluate(
            self._fit,
            weights.ref,
            self._metrics.ref,
            reader.ref,
            rows_per_batch(data, self._batch_size),
            epoch,
            iteration,
        )
        while True:
            parts = sweep(
                self._access,
                data,
                task,
                [found for sent in (self._sent, self._metrics, reader, weights) for found in sent.broadcasts],
                describe=describe,
                doing="evaluating",
                profile=self._profile,
            )
            wrong = mixed(total([part.meta["logits"] for part in parts]))
            if not wrong:
                break
            # Once more, with all of their outputs as logits.
            task = replace(task, logits=(*task.logits, *wrong))
        parts.sort(key=lambda part: int(part.meta["partition"]))
        fresh = {name: spec.fresh().metric for name, spec in self._specs.items()}
        merge(fresh, parts)
        logged = Logged()
        for part in parts:
            logged.merge(part.meta["logged"])
        found = all_scores(fresh)
        return found | logged.scores(found)

    def release(self) -> None:
        """Delete what was broadcast."""
        for sent in (self._metrics, *self._readers.values()):
            sent.release()
        self._readers.clear()

    def _reader(self, data: Dataset) -> Published:
        """Ship how rows of a Dataset become batches, once."""
        if data.id not in self._readers:
            shipped = serialize.dumps(BatchReader.of(data), "transform")
            self._readers[data.id] = self._access.send(shipped)
        return self._readers[data.id]


def with_loss(metrics: Metrics | None) -> dict[str, MetricSpec]:
    """Name metrics and put the run's loss first."""
    return {LOSS: MetricSpec(Loss()), **metric_specs(metrics)}


def all_scores(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Compute all metrics; a loss that no row could be asked for is left out."""
    found: dict[str, float] = {}
    for name, metric in metrics.items():
        if isinstance(metric, Loss) and not metric.update_count:
            continue
        try:
            computed = scores(name, metric)
        except ConfigError:
            raise
        except Exception as error:
            raise ModelError(
                f"metric {name!r} ({type(metric).__name__}) cannot be computed: {error!r}",
                code="model-output",
            ) from error
        for score, value in computed.items():
            if score in found:
                raise ConfigError(f"metrics: two scores are called {score!r}; name the metrics with a dict")
            found[score] = value
    return found


class ScoreNames(NamedTuple):
    """Names of the scores of an evaluation: those of loss and metrics, and those that steps log."""

    measured: list[str]
    logged: list[str]


def check_metrics(shipped: bytes, data: Dataset, metrics: Metrics | None) -> ScoreNames:
    """Try metrics on the first rows, on the driver and on copies; return the scores' names, for monitors.

    Those of vectors may still grow with the rows. Raises ConfigError for no metric or states that cannot be
    merged, ModelError naming a layer or metric, DataError if the transform fails.
    """
    specs = with_loss(metrics)
    serialize.dumps(specs, "metrics")
    spec: FitSpec = serialize.loads(shipped)
    rows = {key: np.array(values) for key, values in data.peek().items()}
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # two rows rarely have every class, and metrics say so
        # Torch only warns when shapes broadcast to a loss that is not what anybody meant.
        warnings.filterwarnings("error", message=".*target size.*", category=UserWarning)
        batch = BatchReader.of(data).batch(rows)
        if batch.weight is not None:  # weights of zero would leave nothing to try
            batch = replace(batch, weight=torch.ones_like(batch.weight))
        replica = FlatModule(spec.module, spec.layout)
        logged = Logged()
        with replica.evaluating():
            output = measure(spec, replica, batch, specs, logged, Logits(given=gives_logits(spec)))
            notes = _check_shapes(spec, replica, BatchReader.of(data).batch(some_rows(data.peek())), specs)
        for name, metric in specs.items():
            if isinstance(metric.metric, Loss):
                if name != LOSS and not metric.metric.update_count:
                    raise ConfigError(
                        f"metric {name!r} is the loss, which needs a label that the rows have not"
                    )
                continue
            check_mergeable(
                name,
                metric.fresh().metric,
                lambda copy, metric=metric: replace(metric, metric=copy).update(  # type: ignore[misc]
                    output, batch.label, batch.inputs
                ),
            )
        names = _names(specs)
    for message in notes:
        warnings.warn(SparkdlWarning(message, code="config"), stacklevel=4)
    return ScoreNames(names, [*logged.scores(names)])


def _check_shapes(
    spec: FitSpec, replica: FlatModule, batch: Batch, metrics: Mapping[str, MetricSpec]
) -> list[str]:
    """Check that loss and metrics compare each row's output with that row's label.

    Returns a warning for each metric whose value depends on how rows are cut into batches.
    """
    has_label = spec.label.kind != "none"
    if batch.label is not None or not has_label:
        check_shapes(spec, replica, batch if has_label else replace(batch, label=None))
    if not any(not isinstance(metric.metric, Loss) for metric in metrics.values()):
        return []
    _, output, _ = forward(spec, replica, batch)
    target = batch.inputs if batch.label is None else batch.label
    notes = []
    for name, metric in metrics.items():
        if not isinstance(metric.metric, Loss):
            mode = MeetingWatch(batch.rows, target, output)
            found = watch(mode, metric.fresh().update, output, batch.label, batch.inputs)
            refuse(found, f"metric {name!r}")
            notes += _check_parts(name, metric, output, batch, gives_logits(spec))
    return notes


def _check_parts(name: str, metric: MetricSpec, output: Any, batch: Batch, are_logits: bool) -> list[str]:
    """Check that unequal parts merge; return a warning if a batch has another value than its rows in two."""
    outputs = Batch(output, None, None, batch.rows)

    def given(start: int, size: int) -> tuple[Any, Any, Any]:
        part = batch.narrow(start, size)
        return outputs.narrow(start, size).inputs, part.label, part.inputs

    def value(*sizes: int) -> dict[str, float]:
        fresh, logits, start = metric.fresh(), Logits(given=are_logits), 0
        for size in sizes:
            logits.update(name, fresh, *given(start, size))
            start += size
        return {} if mixed(logits.seen) else scores(name, fresh.metric)

    def update(start: int, size: int, copy: AnyMetric) -> None:
        replace(metric, metric=copy).update(*given(start, size))

    try:
        whole, parts, again = value(batch.rows), value(1, batch.rows - 1), value(batch.rows)
    except Exception:
        return []  # too few rows for this metric
    check_mergeable(name, metric.fresh().metric, *(partial(update, *cut) for cut in ((0, 2), (1, 2), (2, 3))))
    if not whole or not parts or agree(whole, parts) or not agree(whole, again):
        return []
    return [
        f"metric {name!r} ({type(metric.metric).__name__}) depends on how rows are cut into batches: of "
        f"{batch.rows} rows in one it is {whole!r:.100}, in two {parts!r:.100}. Partitions and "
        "validation_batch_size change it; let prepare= return a value for each row"
    ]


def _names(specs: Mapping[str, MetricSpec]) -> list[str]:
    names: list[str] = []
    for name, spec in specs.items():
        try:
            names += all_scores({name: spec.metric})
        except ModelError:
            names.append(name)  # too few rows for this metric
    return names


class Logged:
    """Means of the scalars that an evaluation's steps log: by name sum and divisor, such as the rows."""

    def __init__(self) -> None:
        self.sums: dict[str, list[float]] = {}

    def add(self, extras: Mapping[str, tuple[float, float]]) -> None:
        """Add the means of a batch, with what they were divided by; one over nothing may be NaN."""
        self.merge({name: (value * own if own else 0.0, own) for name, (value, own) in extras.items()})

    def merge(self, sums: Mapping[str, Sequence[float]]) -> None:
        """Add sums, such as those of another partition."""
        for name, (value, own) in sums.items():
            total = self.sums.setdefault(name, [0.0, 0.0])
            total[0] += value
            total[1] += own

    def scores(self, taken: Collection[str]) -> dict[str, float]:
        """Return the means, without names that are taken by others."""
        free = {name: own for name, own in self.sums.items() if name not in taken and name not in RESERVED}
        return {name: total / divisor if divisor else math.nan for name, (total, divisor) in free.items()}
