"""A server in this process, and saved models for it, without Spark."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from sparkdl.ml.estimators.model import TorchClassificationModel
from sparkdl.ml.persistence.saving import content_of
from sparkdl.nn import SparseMLP, Tabular
from sparkdl.nn.signature import Signature
from sparkdl.saved.source import ModuleSource
from sparkdl.serve.server.options import ServerOptions
from sparkdl.serve.server.run import Server
from sparkdl.table.calendar import VALUES
from sparkdl.table.encoding import Category, Number, TableEncoding
from support.models import MeanOfTokens, SumOfTokens, mlp
from support.mutations import write_tree
from support.saving import describe, folder_of


def save(model: Any, path: Path) -> None:
    """Write a model as ``model.save(path)`` does, over another one."""
    metadata, streams = describe(content_of(model))
    params = {param.name: value for param, value in model._paramMap.items()}
    metadata |= {"class": f"{type(model).__module__}.{type(model).__qualname__}", "paramMap": params}
    write_tree(folder_of(metadata, streams, 1 << 16), path)


def centred(logits: Any) -> Any:
    """Return logits less their mean, as ``rawPrediction`` has those of two classes."""
    return np.asarray(logits) - np.mean(logits, axis=-1, keepdims=True)


def classifier(seed: int = 0) -> TorchClassificationModel:
    """Return a classifier of arrays of 64 numbers."""
    return TorchClassificationModel.from_module(mlp(seed=seed), example=np.zeros((2, 64), np.float32))


def table_classifier() -> TorchClassificationModel:
    """Return a classifier of a table's columns, with labels that are strings."""
    encoding = TableEncoding(
        (Number("age", "number", 40.0, 10.0, True), Number("member", "boolean", 0.5, 0.5, True)),
        (
            Category("job", "string", ("cook", "nurse")),
            Category("day", "date", VALUES["weekday"], "weekday"),
        ),
        {},
        100,
    )
    arguments = {"cardinalities": list(encoding.cardinalities), "numbers": encoding.width, "outputs": 2}
    torch.manual_seed(0)
    module = Tabular(**arguments)
    rows = (torch.zeros(2, 2, dtype=torch.int32), torch.zeros(2, encoding.width))
    model = TorchClassificationModel(
        module,
        source=ModuleSource.of(Tabular, arguments),
        signature=Signature.of_rows(module, rows),
        encoding=encoding,
        labels=("no", "yes"),
    )
    return model._set(featuresCols=list(encoding.columns))


def sparse_classifier(size: int = 1 << 18) -> TorchClassificationModel:
    """Return a classifier of a sparse column, ``words``."""
    torch.manual_seed(0)
    arguments: dict[str, Any] = {"inputs": size, "outputs": 2, "hidden": [4]}
    module = SparseMLP(**arguments)
    rows = (torch.zeros(2, 1, dtype=torch.int32), torch.zeros(2, 1))
    model = TorchClassificationModel(
        module,
        source=ModuleSource.of(SparseMLP, arguments),
        signature=Signature.of_rows(module, rows).of_any_length([True, True]),
    )
    return model._set(featuresCol="words", inputTypes=["sparse"])


def text_classifier(mask: bool = True) -> TorchClassificationModel:
    """Return a classifier of token ids in rows of any length; with a mask of them, or a sum over all."""
    torch.manual_seed(0)
    names = ["input_ids", "attention_mask"] if mask else ["input_ids"]
    module = MeanOfTokens() if mask else SumOfTokens()
    rows = {name: torch.ones(2, 3, dtype=torch.int64) for name in names}
    model = TorchClassificationModel(
        module,
        source=ModuleSource.of(type(module), {}),
        signature=Signature.of_rows(module, rows).of_any_length([True] * len(names)),
    )
    return model._set(featuresCols=names, inputNames=names)


class Running:
    """A server in a thread of its own; ``request`` asks it.

    Args:
        path: of the model.
        trust: what the model may name.
        options: of the server; any free port unless they say.
    """

    def __init__(self, path: Path | str, *, trust: Sequence[str] = (), **options: Any) -> None:
        self.server = Server(str(path), ServerOptions(**{"port": 0, **options}), trust=trust)
        self._thread = threading.Thread(target=lambda: asyncio.run(self.server.serve()))

    def __enter__(self) -> Self:
        self._thread.start()
        while not self.server.started:
            assert self._thread.is_alive()
            time.sleep(0.01)
        self.port = int(self.server.address.rpartition(":")[2])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.server.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def connect(self, timeout: float = 30) -> http.client.HTTPConnection:
        """Return a connection that is not open yet."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body of an answer; a body that is no bytes is sent as JSON."""
        connection = self.connect()
        try:
            sent = dict(headers or {})
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
                sent.setdefault("Content-Type", "application/json")
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def predict(self, body: Any, **headers: str) -> tuple[int, Any]:
        """Return status and body of an answer to JSON; the body's error, if it has one."""
        status, _, text = self.request("POST", "/predict", body, headers)
        value = json.loads(text)
        return status, value.get("error", value) if isinstance(value, dict) else value

    def sample(self, name: str) -> float:
        """Return a number of the metrics."""
        text = self.request("GET", "/metrics")[2].decode()
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))
