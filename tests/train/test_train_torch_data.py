"""Datasets of torch, and rows of different lengths, against plain torch with a DataLoader."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from support.data import digits
from support.reference import assert_bit_equal, relative_error
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torchmetrics.classification import MulticlassAccuracy

from sparkdl import Dataset, Trainer
from sparkdl.data import Pad
from sparkdl.data.elements import plan_items
from sparkdl.exceptions import ConfigError, DataError, NonFiniteError, SerializationError
from sparkdl.train import MaxEpoch

ADAM = partial(torch.optim.Adam, lr=1e-2)
X, Y = digits(200)


class Texts(torch.utils.data.Dataset[Any]):
    """Sequences of 1 to 12 words, some of them rare; the class is whether word 3 is in them."""

    def __init__(self, count: int = 200) -> None:
        draw = np.random.default_rng(0)
        self.rows = [draw.integers(1, 20, size=draw.integers(1, 13)) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self.rows[index]), int(3 in self.rows[index])


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8, padding_idx=0)
        self.read = nn.GRU(8, 12, batch_first=True)
        self.judge = nn.Linear(12, 2)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.words(ids), lengths, batch_first=True, enforce_sorted=False)
        output: Tensor = self.judge(self.read(packed)[1][0])
        return output


def collate(rows: list[Any]) -> Any:
    """A collate_fn as people have it."""
    texts, labels = zip(*rows, strict=True)
    lengths = torch.tensor([len(text) for text in texts])
    return (pad_sequence(texts, batch_first=True), lengths), torch.tensor(labels)


def seeded(make: Any) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = make()
    return module


def in_torch(module: nn.Module, loader: Any, epochs: int = 2) -> nn.Module:
    optimizer = ADAM(module.parameters())
    for _ in range(epochs):
        for inputs, label in loader:
            optimizer.zero_grad()
            output = module(*inputs) if isinstance(inputs, list | tuple) else module(inputs)
            nn.functional.cross_entropy(output, label).backward()
            optimizer.step()
    return module


def trainer(module: nn.Module, **options: Any) -> Trainer:
    options = {"batch_size": 50, "shuffle": False, "end_when": MaxEpoch(2), "progress": False} | options
    return Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=ADAM, **options)


def test_a_map_style_dataset(spark: Any) -> None:
    dataset = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    expected = in_torch(seeded(partial(nn.Linear, 64, 10)), DataLoader(dataset, 50))
    with Dataset.from_torch(dataset, spark=spark, num_partitions=1) as data:
        found = trainer(seeded(partial(nn.Linear, 64, 10))).fit(data)
        assert len(data) == 200
    assert_bit_equal(found.module, expected)
    with Dataset.from_torch(dataset, spark=spark, num_partitions=3) as data:
        assert sorted(data.store().rows) == [66, 67, 67]
        made = trainer(found.module)
        outputs = made.predict(data)
    np.testing.assert_allclose(outputs, found.module(torch.from_numpy(X)).detach(), atol=1e-6)


@pytest.mark.parametrize("group", [tuple, list])
def test_tensors_keep_their_dtype(group: Any) -> None:
    several = group([torch.zeros(2, dtype=torch.int32), torch.zeros(3, dtype=torch.float64)])
    plan = plan_items([(several, torch.tensor(True))], has_label=True, ragged=False)
    assert [column.dtype for column in plan.columns] == ["int32", "float64", "bool"]


def test_rows_of_different_lengths(spark: Any) -> None:
    texts = Texts()
    expected = in_torch(seeded(Reader), DataLoader(texts, 50, collate_fn=collate))
    options: dict[str, Any] = {"metrics": MulticlassAccuracy(2, average="micro")}
    with Dataset.from_torch(texts, spark=spark, num_partitions=1, collate=collate) as data:
        found = trainer(seeded(Reader), **options).fit(data, validation=data)
        outputs = trainer(found.module).predict(data)
    assert_bit_equal(found.module, expected)
    expected.eval()
    (ids, lengths), labels = collate([texts[i] for i in range(200)])
    reference = expected(ids, lengths).detach()
    np.testing.assert_allclose(outputs, reference, atol=1e-6)
    right = (reference.argmax(1) == labels).double().mean().item()
    assert found.scores["val/multiclass_accuracy"] == pytest.approx(right)
    with Dataset.from_torch(texts, spark=spark, num_partitions=3, collate=Pad()) as data:
        spread = trainer(seeded(Reader)).fit(data)
        small = trainer(seeded(Reader), micro_batch_size=7).fit(data)
    # Three shares of each batch: the same rows only in one partition, so one epoch's mean is compared.
    assert abs(np.mean(spread.history.column("loss")) - np.mean(found.history.column("loss"))) < 0.05
    assert relative_error(small.module, spread.module) < 1e-4


def test_rows_of_tables_and_rdds(spark: Any) -> None:
    texts = Texts()
    items = [texts[i] for i in range(200)]
    df = pd.DataFrame({"ids": [x.numpy() for x, _ in items], "y": [y for _, y in items]})
    rdd = spark.sparkContext.parallelize([(x.numpy(), y) for x, y in items], 1)
    expected = in_torch(seeded(Reader), DataLoader(texts, 50, collate_fn=collate))
    for data in (
        Dataset.from_dataframe(df, features="ids", label="y", collate=Pad(), num_partitions=1),
        Dataset.from_rdd(rdd, collate=Pad(), num_partitions="input"),
    ):
        with data:
            assert_bit_equal(trainer(seeded(Reader)).fit(data).module, expected)


def test_mistakes(spark: Any) -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(3))

    class Locked(Texts):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    class Odd(Texts):
        def __getitem__(self, index: int) -> Any:
            return (torch.zeros(4 if index == 150 else 3), 0)

    with pytest.raises(ConfigError, match="expected a map-style dataset"):
        Dataset.from_torch(Stream(), spark=spark)
    with pytest.raises(DataError, match="empty"):
        Dataset.from_torch(Texts(0), spark=spark)
    with pytest.raises(DataError, match="tuples of 2.*has_label=False"):
        Dataset.from_torch([torch.zeros(3)], spark=spark)
    with pytest.raises(ConfigError, match="collate=3: expected a callable"):
        Dataset.from_torch(Texts(), spark=spark, collate=3)  # type: ignore[arg-type]
    with (
        Dataset.from_torch(Locked(), spark=spark, num_partitions=2, collate=Pad()) as data,
        pytest.raises(SerializationError, match="Locked cannot be sent to the executors.*__getitem__"),
    ):
        data.store()
    with (
        Dataset.from_torch(Odd(), spark=spark, num_partitions=2) as data,
        pytest.raises(DataError, match=r"row 150: shape \(4,\) where other rows have \(3,\)"),
    ):
        data.store()
    with (
        Dataset.from_torch(Texts(), spark=spark, num_partitions=2) as data,
        pytest.raises(DataError, match=r"row \d+: shape .*"),
    ):
        data.store()
    bad = lambda rows: (torch.zeros(1), torch.zeros(len(rows)))  # noqa: E731
    with (
        Dataset.from_torch(Texts(), spark=spark, num_partitions=2, collate=bad) as data,
        pytest.raises(DataError, match="collate must return tensors with the batch's 2 rows"),
    ):
        trainer(Reader()).fit(data)

    class Holes(Texts):
        def __getitem__(self, index: int) -> Any:
            values = torch.ones(1 + index % 4)
            return (values * torch.nan if index == 77 else values), 0

    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return x.sum(1, keepdim=True) * self.scale

    with (
        Dataset.from_torch(Holes(), spark=spark, num_partitions=2, collate=Pad()) as data,
        pytest.raises(NonFiniteError, match="column 'features', row 77: nan"),
    ):
        trainer(Sums()).fit(data)


@pytest.mark.jvm
def test_on_spark(spark: Any) -> None:
    texts = Texts(60)
    items = [texts[i] for i in range(60)]
    df = spark.createDataFrame([(x.tolist(), y) for x, y in items], "ids array<int>, y long")
    with (
        Dataset.from_torch(texts, spark=spark, collate=collate, num_partitions=2) as first,
        Dataset.from_dataframe(df, features="ids", label="y", collate=Pad(), num_partitions=1) as second,
    ):
        made = trainer(seeded(Reader), end_when=MaxEpoch(1))
        assert made.fit(first).state.samples == 60
        np.testing.assert_allclose(made.predict(first), made.predict(second), atol=1e-6)
