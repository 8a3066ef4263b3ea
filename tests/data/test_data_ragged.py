"""Rows of different lengths: converted, stored, read and padded."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkdl.data import Pad
from sparkdl.data.collate import check_mask, collated, padding_of
from sparkdl.data.columns import ColumnPlan, Structure, TablePlan, structure_of
from sparkdl.data.convert import from_arrow, from_rows
from sparkdl.data.store.partition import PartitionMissingError, Token, read_rows, write_partition
from sparkdl.exceptions import ConfigError, DataError
from sparkdl.wire.frame import unpack

PLAN = ColumnPlan("x", "x", dtype="int64", ragged=True)
OPEN = ColumnPlan("x", "x", ragged=True)


def name(index: int) -> str:
    return f"row {index}"


def equal(found: Any, rows: Any) -> bool:
    return len(found) == len(rows) and all(map(np.array_equal, found, map(np.asarray, rows)))


lists = st.lists(st.lists(st.integers(-9, 9), max_size=5), min_size=1, max_size=12)


@settings(deadline=None)
@given(lists)
def test_rows_and_arrow_convert_alike(rows: list[list[int]]) -> None:
    by_arrow = from_arrow(PLAN, pa.array(rows, pa.list_(pa.int32())), name)
    assert equal(by_arrow, rows)
    assert {row.dtype for row in by_arrow} == {np.dtype(np.int64)}
    found = from_rows(PLAN, [np.array(row, np.int32) for row in rows], name)
    assert equal(found, rows)
    assert {row.dtype for row in found} == {np.dtype(np.int64)}


def test_inner_dimensions_are_fixed() -> None:
    found = from_arrow(OPEN, pa.array([[[1.0, 2.0]], [], [[3.0, 4.0], [5.0, 6.0]]]), name)
    assert [row.shape for row in found] == [(1, 2), (0, 2), (2, 2)]
    assert found[2].dtype == np.float32
    for bad, message in (
        (lambda: from_arrow(OPEN, pa.array([[[1.0, 2.0]], [[3.0]]]), name), "column 'x', row 1: array of 1"),
        (lambda: from_arrow(OPEN, pa.array([[1], None]), name), "column 'x', row 1: null"),
        (lambda: from_arrow(OPEN, pa.array([[1, 2], [3, None]]), name), "column 'x', row 1: null"),
        (
            lambda: from_rows(OPEN, [np.ones((2, 3)), np.ones((1, 2))], name),
            "row 1: shape .1, 2. where other",
        ),
        (lambda: from_rows(OPEN, [np.ones(2), 3.0], name), "row 1: shape"),
        (lambda: from_rows(OPEN, [["a"]], name), "row 0: .* is not a number or an array of numbers"),
    ):
        with pytest.raises(DataError, match=message):
            bad()


@settings(deadline=None, max_examples=30)
@given(st.lists(lists, min_size=1, max_size=3), st.randoms())
def test_the_store_gives_rows_back(tmp_path_factory: Any, batches: list[Any], random: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("store")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        stored, start = [], 0
        for batch in batches:
            positions = np.arange(start, start + len(batch))
            stored.append((positions, {"x": from_rows(PLAN, batch, name), "y": positions.astype(np.float32)}))
            start += len(batch)
        plans = [PLAN, ColumnPlan("y", "y")]
        token = write_partition("s", 0, "e", plans, stored)
        token = Token.from_frame(unpack(token.to_frame()))
        every = [row for batch in batches for row in batch]
        assert token.rows == len(every)
        assert token.columns == (("x", "int64", (-1,)), ("y", "float32", ()))
        chosen = np.array([random.randrange(len(every)) for _ in range(8)])
        found = read_rows(token, chosen)
        assert equal(found["x"], [every[i] for i in chosen])
        assert np.array_equal(found["y"], chosen)
        files = list(folder.rglob(f"{token.folder.split('/')[-1]}/*.bin"))
        assert files
        assert token.nbytes == sum(f.stat().st_size for f in files if str(f).startswith(token.folder))
        if sum(map(len, every)):
            with open(f"{token.folder}/x.bin", "ab") as file:
                file.write(b"more")
            with pytest.raises(PartitionMissingError):
                read_rows(token, chosen[np.argmax([len(every[i]) for i in chosen]) :][:1])


def test_pad() -> None:
    rows = [(torch.tensor([1, 2, 3]), torch.tensor([5, 6, 7])), (torch.tensor([4]), torch.tensor([8]))]
    (x, lengths), y = Pad(multiple=4)(rows)
    assert x.tolist() == [[1, 2, 3, 0], [4, 0, 0, 0]]
    assert y.tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert lengths.tolist() == [3, 1]
    assert Pad(lengths=False)(rows)[0].tolist() == [[1, 2, 3], [4, 0, 0]]
    several = [((torch.tensor([1.0, 2]), 7), 1), ((torch.tensor([3.0]), 8), 0)]
    (a, b, length), y = Pad(value=-1)(several)
    assert (a.tolist(), b.tolist(), length.tolist(), y.tolist()) == (
        [[1, 2], [3, -1]],
        [7, 8],
        [2, 1],
        [1, 0],
    )
    by_name = Pad(has_label=False)([{"ids": [1, 2], "age": 3}, {"ids": [4], "age": 5}])
    assert {key: value.tolist() for key, value in by_name.items()} == {
        "ids": [[1, 2], [4, 0]],
        "age": [3, 5],
        "ids_lengths": [2, 1],
    }
    with pytest.raises(DataError, match=r"rows of \(features, label\).*has_label=False"):
        Pad()([torch.tensor([1])])
    with pytest.raises(ConfigError, match="multiple=0"):
        Pad(multiple=0)


def test_collate_gets_rows_and_gives_a_batch() -> None:
    columns = {"features": from_rows(PLAN, [[1, 2], [3]], name), "label": np.array([0, 1])}
    features, label = structure_of(0, "features"), structure_of(0, "label")
    seen: list[Any] = []

    def collate(rows: list[Any]) -> Any:
        seen.extend(rows)
        return [torch.zeros(2), torch.ones(2)], torch.tensor([y for _, y in rows])

    inputs, target = collated(columns, features, label, collate)
    assert isinstance(inputs, tuple)
    assert target.tolist() == [0, 1]
    assert seen[0][0].tolist() == [1, 2]
    _, target = collated(columns, features, Structure("none"), lambda rows: torch.zeros(len(rows)))
    assert target is None
    with pytest.raises(DataError, match=r"collate returned Tensor; expected \(inputs, label\)"):
        collated(columns, features, label, lambda rows: torch.zeros(2))


# -- a value for each column ----------------------------------------------------------------------


def test_each_feature_is_filled_up_with_its_own_value() -> None:
    rows = [{"ids": torch.tensor([1, 2]), "mask": torch.tensor([1, 1])}, {"ids": [3], "mask": [1]}]
    found = Pad(value={"ids": 9, "mask": 0}, lengths=False, has_label=False)(rows)
    assert found["ids"].tolist() == [[1, 2], [3, 9]]
    assert found["mask"].tolist() == [[1, 1], [1, 0]]
    pairs = [(torch.tensor([1, 2]), torch.tensor([1])), (torch.tensor([3]), torch.tensor([4, 5]))]
    ids, others = Pad(value=(7, 8), lengths=False, has_label=False)(pairs)
    assert ids.tolist() == [[1, 2], [3, 7]]
    assert others.tolist() == [[1, 8], [4, 5]]


@pytest.mark.parametrize(
    ("value", "rows"),
    [
        ({"ids": 9}, [{"ids": [1], "mask": [1]}]),
        ((1, 2, 3), [([1], [2])]),
        ((1, 2), [[1, 2]]),
        ({"ids": 1}, [torch.tensor([1])]),
    ],
)
def test_values_that_do_not_fit_the_features(value: Any, rows: Any) -> None:
    rows = [torch.tensor(row) if isinstance(row, list) else row for row in rows]
    with pytest.raises(ConfigError, match=r"Pad\(value="):
        Pad(value=value, lengths=False, has_label=False)(rows)


def test_metadata_say_how_rows_are_padded() -> None:
    features = structure_of({"ids": "a", "mask": "b"}, "features")
    columns = (
        ColumnPlan("features_ids", "a", dtype="int64", ragged=True, fill=9),
        ColumnPlan("features_mask", "b", dtype="int64", ragged=True, fill=0),
        ColumnPlan("label", "y"),
    )
    plan = TablePlan(columns, features, structure_of("y", "label"), weighted=False)
    assert padding_of(plan) == Pad(value={"ids": 9, "mask": 0}, lengths=False)
    assert padding_of(replace(plan, columns=columns[2:])) is None


def test_a_mask_is_as_long_as_the_tokens() -> None:
    rows = [
        {"input_ids": [1, 2, 3], "attention_mask": [1, 1]},
        {"input_ids": [4, 5], "attention_mask": [1, 1, 1]},
    ]
    tensors = [{name: torch.tensor(values) for name, values in row.items()} for row in rows]
    with pytest.raises(DataError, match="row 0 of a batch: input_ids has 3 values and attention_mask 2"):
        Pad(lengths=False, has_label=False)(tensors)  # filled up, both have shape (2, 3)


@pytest.mark.parametrize("shape", [(1, 3), (1, 1, 3), (3, 3)])
def test_a_mask_may_be_of_more_dimensions(shape: tuple[int, ...]) -> None:
    inputs = {"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, *shape)}
    check_mask(inputs, str)
    check_mask({name: list(rows) for name, rows in inputs.items()}, str)
    check_mask({"tokens": torch.ones(2, 3), "attention_mask": torch.ones(2, 4)}, str)  # other tokens
    with pytest.raises(DataError, match=r"0: input_ids has 3 values and attention_mask 0"):
        check_mask({**inputs, "attention_mask": torch.ones(2)}, str)
