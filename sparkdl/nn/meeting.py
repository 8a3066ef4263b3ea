"""Finds outputs and labels whose shapes torch broadcasts by accident.

An output of shape (rows, 1) less a label of shape (rows,) is (rows, rows): every output is compared with
every label, and training goes on with a wrong loss. Torch warns of it in some losses; code of the user's own
has no such warning. So the dry run looks at each operation of a loss or step: does a tensor that comes from
the label, and from nothing that is trained, meet one that comes from the module, so that the rows of one lie
along another dimension of the other?
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparkdl.nn.batch import Batch, call, tensors_of
from sparkdl.nn.objective import LossObjective, Objective

ROWS = 5
"""Rows to look with: a size that is rarely another dimension's, too."""


class MeetingWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches operations for a label that meets an output across rows.

    Outputs are trees of tensors that a module gave; where these are not given, those computed from
    ``parameters``. ``found`` is the label and output that meet, for the error; empty if none do.
    """

    def __init__(
        self, rows: int, labels: Any, outputs: Any = None, parameters: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""
        self._rows = rows
        self._kept: list[Tensor] = []  # a storage that is freed could come back as another tensor's
        self._trained: set[int] = set()
        self._labels: set[int] = set()
        self._parameters = set()
        for tensor in tensors_of([outputs, *parameters]):
            self._mark(tensor, trained=True, label=False)
        for tensor in parameters:
            self._parameters.add(_storage(tensor))
        for tensor in tensors_of(labels):
            self._mark(tensor, trained=False, label=True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, note the origin of its result, and look at its operands."""
        result = func(*args, **(kwargs or {}))
        operands = tensors_of([args, kwargs or {}])
        trained = any(_storage(operand) in self._trained for operand in operands)
        label = any(_storage(operand) in self._labels for operand in operands)
        results = tensors_of(result)
        for tensor in results:
            self._mark(tensor, trained, label)
        if trained and label and not self.found:
            name = func.__name__.partition(".")[0]
            outputs, targets = filter(self._is_output, operands), filter(self._is_label, operands)
            for output, target in product(outputs, targets):
                if self._across(output, target, results):
                    self.found = f"{name} of {self._say(output, target)}"
        return result

    def _mark(self, tensor: Tensor, trained: bool, label: bool) -> None:
        storage = _storage(tensor)
        if storage and (trained or label):
            self._kept.append(tensor)
            self._trained |= {storage} if trained else set()
            self._labels |= {storage} if label else set()

    def _is_output(self, tensor: Tensor) -> bool:
        return _storage(tensor) in self._trained - self._parameters

    def _is_label(self, tensor: Tensor) -> bool:
        return _storage(tensor) in self._labels - self._trained

    def _across(self, output: Tensor, label: Tensor, results: list[Tensor]) -> bool:
        """Return whether the rows of one lie along a dimension of size 1 of the other, and of the results."""
        short, long = sorted((tuple(output.shape), tuple(label.shape)), key=len)
        offset = len(long) - len(short)
        if not offset or not short or (short[0], long[0], long[offset]) != (self._rows, self._rows, 1):
            return False
        across = (self._rows, self._rows)
        return any(
            (result.shape[0], result.shape[offset]) == across for result in results if result.dim() > offset
        )

    def _say(self, output: Tensor, label: Tensor) -> str:
        shapes = [f"({', '.join(['rows', *map(str, t.shape[1:])])})" for t in (output, label)]
        return f"an output of shape {shapes[0]} and a label of shape {shapes[1]}".replace("(rows)", "(rows,)")


def find_broadcast(objective: Objective, module: nn.Module, batch: Batch) -> str:
    """Return where an objective compares the rows of a batch with each other's labels; empty if nowhere."""
    if isinstance(objective, LossObjective):
        target = batch.inputs if batch.label is None else batch.label
        try:
            with torch.no_grad():
                output = call(module, batch.inputs)
        except Exception:
            return ""  # the dry run itself says why
        return watch(MeetingWatch(batch.rows, target, output), objective.loss, output, target)
    mode = MeetingWatch(batch.rows, batch.label, parameters=list(module.parameters()))
    return watch(mode, objective if module.training else objective.evaluate, module, batch)


def watch(mode: MeetingWatch, compute: Any, *arguments: Any) -> str:
    """Return the finding of a computation; its own errors are left to the dry run."""
    try:
        with mode:
            compute(*arguments)
    except Exception:
        pass
    return mode.found


def _storage(tensor: Tensor) -> int:
    """Return the id of a tensor's storage, which its views share; 0 if it has none, as if it is sparse."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0
