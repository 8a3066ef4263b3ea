"""Teachers behind a service: ``sparkdl serve`` on machines that come and go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from sparkdl.data.columns import ColumnLike, Structure
from sparkdl.distill.client import Client, addresses_of
from sparkdl.distill.teachers import Answering, Outputs, check_options, role
from sparkdl.exceptions import ConfigError

Policy = Literal["wait", "skip", "fail"]
"""What a student does while no server answers: wait, go on without, or end with an error."""


@dataclass(frozen=True, slots=True)
class Service:
    """A saved model behind one or more servers, each a ``sparkdl serve``, asked by the tasks.

    Each request goes to the next address in turn, and tasks begin with different ones. A server that does not
    answer is left out for ``refresh`` seconds, and the others have its share.

    Args:
        addresses: ``"host:port"`` or ``"https://host:port"`` of each server; or the path of a file with one
            in each line, or a callable that returns them, read again every ``refresh`` seconds in the tasks.
        inputs: column by the name that the served model has for it; by default it gets the student's inputs.
            With a Dataset, names of entries of its label.
        output: which column of the answer to learn; of a model with a single logit ``"probability"``, see
            :class:`SoftLabels`.
        weight: its weight among several teachers.
        outputs: ``"probabilities"`` if the column holds these, and not logits.
        policy: what a student does while no server answers: ``"wait"``, for ``patience`` seconds; ``"skip"``,
            which trains those rows on their labels and the other teachers alone; or ``"fail"``, at once.
        patience: seconds to wait. In the middle of a group other tasks wait, too, for two minutes at most.
        timeout: seconds for an answer.
        refresh: seconds after which addresses are read again, and servers that were lost are asked again.
        rows_per_request: rows of a request, no more than the servers' ``--max-rows``.
        token: what the servers want; it is sent to them, and goes to the executors with the loss.

    Raises:
        ConfigError: if an option cannot work.
    """

    addresses: Sequence[str] | str | Callable[[], Sequence[str]]
    inputs: Mapping[str, ColumnLike] | None = None
    output: str = "rawPrediction"
    weight: float = 1.0
    outputs: Outputs = "logits"
    policy: Policy = "wait"
    patience: float = 60.0
    timeout: float = 30.0
    refresh: float = 5.0
    rows_per_request: int = 512
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_options(self.weight, self.outputs)
        if self.policy not in ("wait", "skip", "fail"):
            raise ConfigError(f"policy={self.policy!r}: expected 'wait', 'skip' or 'fail'")
        for name in ("patience", "timeout", "refresh"):
            value: Any = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value <= 86_400:
                raise ConfigError(f"{name}={value!r}: expected seconds, more than 0 and at most a day")
        if not isinstance(self.rows_per_request, int) or self.rows_per_request < 1:
            raise ConfigError(f"rows_per_request={self.rows_per_request!r}: expected a positive integer")
        if self.inputs is not None and (not isinstance(self.inputs, Mapping) or not self.inputs):
            raise ConfigError(
                f"inputs={self.inputs!r:.100} of a Service: expected a dict, {{column of the served model: "
                "column}}"
            )
        if not isinstance(self.addresses, str) and not callable(self.addresses):
            addresses_of(self.addresses)

    def columns(self, number: int) -> tuple[Structure | None, dict[str, ColumnLike]]:
        """Return how its inputs group, and the column of each by key."""
        if self.inputs is None:
            return None, {}
        keys = tuple(f"{role(number)}_{index}" for index in range(len(self.inputs)))
        structure = Structure("dict", keys, tuple(self.inputs))
        return structure, dict(zip(keys, self.inputs.values(), strict=True))

    def answering(self, number: int, reads: Structure | None, entries: Mapping[str, str]) -> Answering:
        """Return it as tasks have it."""
        client = Client(
            self.addresses,
            self.token,
            timeout=self.timeout,
            refresh=self.refresh,
            patience={"wait": self.patience, "fail": 0.0}.get(self.policy),
        )
        name = f"teacher {number} (service)"
        return ServiceAnswers(
            client, self.output, self.rows_per_request, name, reads, entries, self.weight, self.outputs
        )


class ServiceAnswers(Answering):
    """The answers of servers; further arguments as of :class:`Answering`."""

    def __init__(self, client: Client, column: str, size: int, *rest: Any) -> None:
        super().__init__(*rest)
        self.client, self.column, self.size = client, column, size
        self._width: tuple[int, ...] = (1,)  # of rows that nobody has answered yet

    def check(self, inputs: Any) -> None:
        """Check that a server answers, and that it takes these inputs and gives the column.

        Raises ConfigError for another model, ModelError if none answers and the student needs one.
        """
        model = self.client.model()
        if model is None:
            return
        self.columns = tuple(model["inputs"])
        for name in self._named(inputs):
            if name not in model["inputs"]:
                raise ConfigError(
                    f"{self.name}: the served model {model['model']} has no column {name!r}; it takes "
                    f"{', '.join(model['inputs'])}: say inputs={{its column: your column}}"
                )
        if self.column not in model["outputs"]:
            raise ConfigError(
                f"{self.name}: the served model {model['model']} gives {', '.join(model['outputs'])}, and "
                f"not {self.column!r}: say output="
            )

    def answer(self, inputs: Any, rows: int) -> Tensor:
        """Return the column; NaN in rows that nobody answered."""
        columns = self._named(inputs)
        if columns is None:  # nobody has told the names of the columns
            return torch.full((rows, *self._width), torch.nan)
        device = next(iter(columns.values())).device
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in columns.items()}
        parts: list[Any] = []
        for start in range(0, rows, self.size):
            part = {name: array[start : start + self.size] for name, array in arrays.items()}
            parts.append(self.client.predict(part, self.column))
        widths = [part.shape[1:] for part in parts if part is not None]
        if widths:
            self._width = widths[0]
        filled = [
            np.full((min(self.size, rows - n * self.size), *self._width), np.nan, np.float32)
            if part is None
            else part
            for n, part in enumerate(parts)
        ]
        return torch.from_numpy(np.concatenate(filled)).to(device)

    def _named(self, inputs: Any) -> Any:
        """Return inputs by the served model's columns; ``None`` if these are not known."""
        if isinstance(inputs, Mapping):
            return dict(inputs)
        given = [inputs] if isinstance(inputs, Tensor) else list(inputs)
        model = self.client.model()
        if model is None:
            return None
        names = tuple(model["inputs"])
        if len(names) != len(given):
            raise ConfigError(
                f"{self.name}: the served model takes {len(names)} columns, {', '.join(names)}, and the "
                f"student has {len(given)} inputs: say inputs={{its column: your column}}"
            )
        return dict(zip(names, given, strict=True))
