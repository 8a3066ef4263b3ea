"""One program, trained by sparkdl and by plain torch: to the bit with one partition, and with three.

The three partitions are compared with torch over the same global batches. Where torch itself gives something
else when a batch comes in shares (BatchNorm, dropout), they are compared with torch over the same shares.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from sparkdl import Dataset, Trainer, seeding
from sparkdl.data import sampler
from sparkdl.data.streams import FROM_THE_BEGINNING, Dealt, epoch_of
from sparkdl.exceptions import NonFiniteError, SparkdlError, SparkdlWarning
from sparkdl.nn.batch import Batch
from sparkdl.train import MaxIteration

BATCH, STEPS, SEED = 8, 6, 5  # with which no share has a single row, that BatchNorm refuses
LAYOUTS = ([22], [8, 7, 7])  # three iterations an epoch, of different sizes
ROWS = sum(LAYOUTS[0])
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}

SGD: Any = (torch.optim.SGD, {"lr": 0.02, "momentum": 0.9})
_DRAWING = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)
_STATISTICS = (nn.modules.batchnorm._NormBase,)


@dataclass
class Program:
    """What a user of torch would train.

    Attributes:
        module: the module.
        rows: arrays by place: features, and the label.
        compute: loss of module and batch, as torch computes it.
        given: how sparkdl gets it: ``loss=`` or ``step=``; neither for a module that knows its own.
        optimizer: class and arguments.
        counted: how much the loss of a share counts, by its labels; by default as much as it has rows.
    """

    module: nn.Module
    features: Any
    label: Any
    compute: Callable[[nn.Module, Batch], torch.Tensor]
    given: Mapping[str, Any]
    optimizer: Any = SGD
    counted: Callable[[Any], float] = len

    def factory(self) -> Callable[[Any], torch.optim.Optimizer]:
        """Return what makes the optimizer, each time with arguments of its own."""
        cls, arguments = self.optimizer
        return partial(cls, **copy.deepcopy(arguments))


@dataclass(frozen=True)
class Entry:
    """An entry of a public database.

    Attributes:
        family: the database.
        name: names the entry.
        make: makes the program in a dtype.
        dtypes: those that it can be made in, for three partitions the first that does.
    """

    family: str
    name: str
    make: Callable[[torch.dtype], Program]
    dtypes: Sequence[torch.dtype] = (torch.float64, torch.float32)


@dataclass
class Outcome:
    """How an entry ended.

    Attributes:
        verdict: ``equal``, ``rounding``, ``refused``, ``different`` or ``not fed``.
        reason: why it is not equal to the bit, or what was said.
        notes: what else is to be known.
    """

    verdict: str
    reason: str = ""
    notes: list[str] = field(default_factory=list)


def run(spark: Any, entry: Entry) -> Outcome:
    """Train an entry in all ways."""
    try:
        program = entry.make(torch.float32)
    except Exception as error:
        return Outcome("not fed", f"{type(error).__name__}: {_short(error)}")
    try:
        with _quiet():
            expected = train(program, LAYOUTS[0])
    except Exception as error:
        return Outcome("not fed", f"torch: {type(error).__name__}: {_short(error)}")
    found = _fit(spark, entry.make(torch.float32), LAYOUTS[0])
    if isinstance(found, Outcome):
        return found
    (one, told), outcome = found, Outcome("equal")
    if not _same_bits(one, expected):
        with _quiet():
            in_one_array = train(entry.make(torch.float32), LAYOUTS[0], in_one_array=True)
        far = distance(one, expected)
        if _same_bits(one, in_one_array):
            reason = "the bits of torch with all weights in one array, where kernels sum in another order"
            outcome = Outcome("rounding", reason)
        elif far < TOLERANCE[torch.float32]:
            outcome = Outcome("rounding", f"one partition: {far:.0e} from torch")
        else:
            return Outcome("different", f"one partition: {far:.1e} from torch")
    if told:
        outcome.notes.append(f"told with one partition: {told}")
    still = unmoved(program.module, expected.module)
    if still:
        outcome.notes.append(f"torch moves all but {', '.join(still[:3])}{' ...' if len(still) > 3 else ''}")
    return _in_three(spark, entry, outcome)


def _in_three(spark: Any, entry: Entry, outcome: Outcome) -> Outcome:
    """Add what three partitions give."""
    reached = ""
    for dtype in entry.dtypes:
        try:
            with _quiet():
                program = entry.make(dtype)
                whole = train(program, LAYOUTS[1])
        except Exception as error:
            outcome.notes.append(f"no {dtype}: {_short(error)}")
            continue
        found = _fit(spark, entry.make(dtype), LAYOUTS[1])
        if isinstance(found, Outcome):
            if "NonFiniteError" in found.reason and not _is_finite_in_shares(entry.make(dtype)):
                outcome.notes.append(f"no {dtype}: a share's loss or gradient is not finite in torch")
                continue
            if found.verdict == "refused":
                found.notes = [*outcome.notes, "with three partitions; one is " + outcome.verdict]
            return found
        three, told = found
        far = distance(three, whole)
        if far < TOLERANCE[dtype]:
            return _noted(outcome, told, f"three partitions within {TOLERANCE[dtype]:g} in {_name(dtype)}")
        reason = depends_on_shares(program.module, three.module)
        try:
            with _quiet():
                shares = train(entry.make(dtype), LAYOUTS[1], in_shares=True)
            apart = distance(three, shares)
        except Exception:
            apart = math.inf
        if apart < TOLERANCE[dtype] and dtype == torch.float32 and far < 10 * TOLERANCE[dtype]:
            reason = reason or "rounding"
        if apart < TOLERANCE[dtype] and (reason or told):
            reason = reason or "the loss couples rows, which a warning tells"
            return _noted(
                outcome, told, f"over shares ({reason}): within {TOLERANCE[dtype]:g} in {_name(dtype)}"
            )
        reached += f"{_name(dtype)}: {far:.1e} from torch, {apart:.1e} over shares; "
    if not reached:
        return outcome
    return Outcome("different", f"three partitions: {reached.removesuffix('; ')}", outcome.notes)


def _is_finite_in_shares(program: Program) -> bool:
    try:
        with _quiet():
            trained = train(program, LAYOUTS[1], in_shares=True)
    except ArithmeticError:
        return False
    return all(bool(p.isfinite().all()) for p in trained.module.parameters())


def _noted(outcome: Outcome, told: str, note: str) -> Outcome:
    outcome.notes.append(note)
    if told:
        outcome.notes.append(f"told: {told}")
    return outcome


# -- sparkdl ---------------------------------------------------------------------------------------


@dataclass
class Trained:
    """A module after training, and the loss of each step."""

    module: nn.Module
    losses: list[float]


def _fit(spark: Any, program: Program, sizes: Sequence[int]) -> tuple[Trained, str] | Outcome:
    """Return what sparkdl trains, and what it warned of; or how it refuses."""
    trainer = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            trainer = Trainer(
                program.module,
                **program.given,
                optimizer=program.factory(),
                batch_size=BATCH,
                seed=SEED,
                end_when=MaxIteration(STEPS),
                progress=False,
            )
            with dataset(spark, program, sizes) as data:
                result = trainer.fit(data)
        except SparkdlError as error:
            begun = getattr(getattr(error, "result", None), "history", ())
            late_or_nan = len(begun) or isinstance(error, NonFiniteError)  # torch may be so, too
            verdict = "different" if late_or_nan else "refused"
            late = f"after {len(begun)} iterations: " if len(begun) else ""
            return Outcome(verdict, f"{late}{type(error).__name__}: {_short(error)}")
        except Exception as error:
            return Outcome("different", f"a bare {type(error).__name__}: {_short(error)}")
    said = [str(w.message) for w in caught if isinstance(w.message, SparkdlWarning)]
    return Trained(result.module, result.history.column("loss")), _short("; ".join(said))


def dataset(spark: Any, program: Program, sizes: Sequence[int]) -> Dataset:
    """Return rows in partitions of these sizes."""
    pairs = [(_pick(program.features, row), _pick(program.label, row)) for row in range(ROWS)]
    labelled = program.label is not None
    items = [pair if labelled else pair[0] for pair in pairs]
    data = Dataset.from_torch(items, spark=spark, has_label=labelled, num_partitions=len(sizes))
    assert data.store().rows == tuple(sizes)
    return data


# -- torch -----------------------------------------------------------------------------------------


def train(
    program: Program, sizes: Sequence[int], *, in_shares: bool = False, in_one_array: bool = False
) -> Trained:
    """Train in plain torch, on whole batches, or with a replica for each partition's share.

    With ``in_one_array`` the weights are views of one array, one after the other: some kernels sum in another
    order for weights that begin elsewhere in memory.
    """
    module = copy.deepcopy(program.module).train()
    trained = [p for p in module.parameters() if p.requires_grad]
    if in_one_array:
        array, start = torch.cat([p.detach().reshape(-1) for p in trained]), 0
        for parameter in trained:
            parameter.data = array[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
    optimizer, losses = program.factory()(trained), []
    for iteration in range(STEPS):
        epoch, shares = rows_of(sizes, iteration)
        optimizer.zero_grad()
        if in_shares:
            losses.append(_of_shares(program, module, trained, shares, epoch, iteration))
        else:
            seeding.seed_task(SEED, epoch, iteration, 0)

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss = program.compute(module, batch_of(program, np.concatenate(shares)))  # noqa: B023
                loss.backward()
                return loss

            if isinstance(optimizer, torch.optim.LBFGS):
                losses.append(float(optimizer.step(closure)))
                continue
            losses.append(closure().item())
        if not math.isfinite(losses[-1]):
            raise ArithmeticError("the loss is not finite in torch")
        optimizer.step()
    return Trained(module, losses)


def rows_of(sizes: Sequence[int], iteration: int) -> tuple[int, list[Any]]:
    """Return the epoch and the row numbers of each partition's share."""
    steps = sampler.iterations_per_epoch(sum(sizes), BATCH)
    epoch, step = divmod(iteration, steps)
    slots = FROM_THE_BEGINNING.slots(sum(sizes), steps, step)
    parts = [Dealt(sum(sizes), p, len(sizes)) for p in range(len(sizes))]
    return epoch, [part.numbers()[epoch_of(part, SEED, epoch, True).rows(slots)] for part in parts]


def batch_of(program: Program, rows: Any) -> Batch:
    """Return rows as tensors."""
    return Batch(_tensors(program.features, rows), _tensors(program.label, rows), None, len(rows))


def _of_shares(
    program: Program, module: nn.Module, trained: list[Any], shares: list[Any], epoch: int, iteration: int
) -> float:
    """Leave the mean of the shares' gradients and buffers in a module; return the mean loss."""
    total, mean, replicas = sum(map(len, shares)), 0.0, []
    whole = program.counted(_pick_rows(program.label, np.concatenate(shares)))
    for partition, rows in enumerate(shares):
        replica = copy.deepcopy(module)
        weight = program.counted(_pick_rows(program.label, rows)) / whole
        seeding.seed_task(SEED, epoch, iteration, partition)
        loss = program.compute(replica, batch_of(program, rows))
        loss.backward()
        mean += weight * loss.item()
        replicas.append((weight, len(rows) / total, replica))
    for index, parameter in enumerate(trained):
        for weight, _, replica in replicas:
            gradient = [p for p in replica.parameters() if p.requires_grad][index].grad
            if gradient is not None:
                scaled = gradient * weight
                parameter.grad = scaled if parameter.grad is None else parameter.grad + scaled
    for index, buffer in enumerate(module.buffers()):
        values = [list(replica.buffers())[index] for _, _, replica in replicas]
        if buffer.is_floating_point():
            buffer.copy_(sum(share * value for (_, share, _), value in zip(replicas, values, strict=True)))
        else:
            buffer.copy_(torch.stack(values).amax(dim=0))
    return mean


def depends_on_shares(module: nn.Module, trained: nn.Module) -> str:
    """Return why a module computes something else on a share of a batch; empty if it does not."""
    for layer in module.modules():
        if isinstance(layer, _STATISTICS) and not isinstance(layer, nn.modules.instancenorm._InstanceNorm):
            return "BatchNorm"
        if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
            return "running statistics"
        if isinstance(layer, _DRAWING) and getattr(layer, "p", 1.0) > 0:
            return "dropout" if isinstance(layer, _DRAWING[0]) else "random numbers"
        if getattr(layer, "dropout", None) and isinstance(layer.dropout, float):
            return "dropout"
        if "StochasticDepth" in type(layer).__name__ or getattr(layer, "drop_prob", None):
            return "random depth"
    then = dict(module.named_buffers())
    if any(b.is_floating_point() and not torch.equal(b, then[n]) for n, b in trained.named_buffers()):
        return "running statistics"
    return ""


# -- comparing -------------------------------------------------------------------------------------


def distance(found: Trained, expected: Trained) -> float:
    """Return the largest relative difference of a tensor, or of a loss."""
    mine, wanted = found.module.state_dict(), expected.module.state_dict()
    if mine.keys() != wanted.keys():
        return math.inf
    tensors = {n: t for n, t in wanted.items() if isinstance(t, torch.Tensor)}
    floor = 1e-2 * max([float(_wide(t).norm()) for t in tensors.values()] or [1.0])
    apart = [
        float((_wide(mine[n]) - _wide(t)).norm()) / max(float(_wide(t).norm()), floor, 1e-12)
        for n, t in tensors.items()
        if t.numel()
    ]
    losses = np.abs(np.subtract(found.losses, expected.losses)) / np.maximum(np.abs(expected.losses), 1e-3)
    return max([*apart, float(losses.max())])


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    tensor = torch.nan_to_num(tensor.detach(), nan=12345.0) if tensor.is_floating_point() else tensor.detach()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _same_bits(found: Trained, expected: Trained) -> bool:
    mine, wanted = found.module.state_dict(), expected.module.state_dict()
    return mine.keys() == wanted.keys() and all(
        torch.equal(mine[n], t) for n, t in wanted.items() if isinstance(t, torch.Tensor)
    )


def unmoved(before: nn.Module, after: nn.Module) -> list[str]:
    """Return the names of trained tensors that have not moved."""
    then = dict(before.named_parameters())
    return [
        name
        for name, p in after.named_parameters()
        if p.requires_grad and torch.equal(p, then[name].detach())
    ]


# -- rows ------------------------------------------------------------------------------------------


def _pick(value: Any, row: int) -> Any:
    """Return a row as torch's datasets hold it."""
    if isinstance(value, dict):
        return {name: torch.as_tensor(part[row]) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(torch.as_tensor(part[row]) for part in value)
    return None if value is None else torch.as_tensor(value[row])


def _tensors(value: Any, rows: Any) -> Any:
    if isinstance(value, dict):
        return {name: torch.from_numpy(part[rows]) for name, part in value.items()}
    if isinstance(value, tuple):
        return tuple(torch.from_numpy(part[rows]) for part in value)
    return None if value is None else torch.from_numpy(value[rows])


def _pick_rows(value: Any, rows: Any) -> Any:
    return value[rows] if isinstance(value, np.ndarray) else rows


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _short(error: object) -> str:
    return " ".join(str(error).split())[:220]


class _quiet(warnings.catch_warnings):  # noqa: N801
    """Torch's own warnings are not looked at."""

    def __enter__(self) -> Any:
        found = super().__enter__()
        warnings.simplefilter("ignore")
        return found
