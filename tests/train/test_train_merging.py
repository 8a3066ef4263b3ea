"""Merging files of changes gives what they lead to in memory, whatever is read at a time. No JVM."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparkdl.allreduce import messages, shard_files
from sparkdl.allreduce.messages import OwnedRows
from sparkdl.allreduce.row_layers import complete, rows_only
from sparkdl.allreduce.shard_states import ShardStates, is_of_rows, joined_rows, unpacked
from sparkdl.exceptions import ConfigError
from sparkdl.keyed.entries import ROW, Entries
from sparkdl.train.checkpoint import stored_rows
from sparkdl.train.checkpoint.folder import name_of
from sparkdl.train.checkpoint.mark import STATE, WEIGHTS, Base, Mark, sealed
from sparkdl.train.checkpoint.merging import merge
from sparkdl.wire import frame
from sparkdl.wire.frame import Array

WIDTH = 3


class History:
    """Entries of a table, and how they change.

    Args:
        seed: of the changes.
        spread: pages of all ids if those without an entry are counted.
    """

    def __init__(self, seed: int, spread: int) -> None:
        self.random, self.spread, self.completed = np.random.default_rng(seed), spread, 0
        self.rows: dict[int, tuple[int, int, bool, Array, Array]] = {}
        self.gone: list[tuple[int, int]] = []
        self.pages: dict[int, tuple[int, Array]] = {}

    def advance(self) -> None:
        """Evict some ids, and look some up."""
        random, now = self.random, self.completed
        for own in [own for own in self.rows if random.random() < 0.1]:
            del self.rows[own]
            self.gone.append((own, now))
        for own in np.unique(random.integers(-60, 60, 40)).tolist():
            count, _, admitted, *_ = self.rows.get(own, (0, 0, False))
            row, state = random.normal(size=(2, WIDTH)).astype(np.float32)
            self.rows[own] = (count + 1, now, admitted or bool(random.random() < 0.7), row, state)
        for page in random.integers(0, max(1, self.spread), 3 if self.spread else 0).tolist():
            self.pages[page] = (now, random.integers(0, 9, 4).astype(np.uint8))
        self.completed += 1

    def entries(self, logged: int) -> Entries:
        """Return all entries."""
        found = list(self.rows.values())
        rows = [
            np.array([own[at] for own in found if own[2]], np.float32).reshape(-1, WIDTH) for at in (3, 4)
        ]
        gone = [own for own in self.gone if own[1] >= logged]
        pages = None
        if self.spread:
            cells = np.array([own for _, own in self.pages.values()], np.uint8).reshape(-1, 4)
            last = _integers(own for own, _ in self.pages.values())
            every = np.ones(len(last), np.int64)
            pages = Entries(_integers(self.pages), every, last, every.astype(np.bool_), {ROW: cells})
        return Entries(
            _integers(self.rows),
            _integers(own[0] for own in found),
            _integers(own[1] for own in found),
            np.array([own[2] for own in found], np.bool_),
            {ROW: rows[0], "exp_avg": rows[1]},
            {"step": float(self.completed)},
            _integers(own[0] for own in gone),
            _integers(own[1] for own in gone),
            logged=logged,
            pages=pages,
            spread=self.spread,
        )


def _integers(values: Any) -> Any:
    return np.array(list(values), np.int64)


def kept_of(tables: Mapping[str, History], count: int, since: int, logged: int = 0) -> ShardStates:
    """Return what stays with so many shards: some state, and what has changed."""
    found: ShardStates = []
    for number in range(count):
        own = {
            name: table.entries(logged).of_owner(number, count).changed(since)
            for name, table in tables.items()
        }
        scalars = {"0.step": np.array(7.0), "0.exp_avg": np.arange(5.0) + number}
        state = frame.pack({"kind": "state", "runs": []}, scalars)
        found.append([frame.join(state), frame.join(messages.encode(OwnedRows(own)))])
    return found


def write(path: Path, layers: list[ShardStates]) -> dict[str, str]:
    """Write the files of shards, in layers of which the oldest comes first."""
    path.mkdir(exist_ok=True)
    return {
        name: shard_files.write_whole(str(path / name), [shard_files.encode(frames)])
        for layer, kept in enumerate(reversed(layers))
        for n, frames in enumerate(kept)
        for name in [shard_files.name_of(n, len(kept), shard_files.layer_kind(layer))]
    }


def marked(path: Path, digests: Mapping[str, str], base: Base | None) -> Base:
    """Make a checkpoint of files of shards, and return it as another one's base."""
    (path / WEIGHTS).write_bytes(b"")
    mark: dict[str, Any] = {"format": 3, "state": {}, "scores": {}}
    mark["sha256"] = {**digests, WEIGHTS: shard_files.digest_of(str(path / WEIGHTS))}
    if base is not None:
        mark["base"] = {"iteration": base.iteration, "seal": base.seal}
    (path / STATE).write_bytes(sealed(mark))
    return Base(int(path.name.rpartition("-")[2]), Mark.parse(str(path), sealed(mark)).seal)


def merged(base: Path, path: Path, digests: Mapping[str, str]) -> ShardStates:
    """Merge, and return what the files have."""
    found = merge(
        str(base), str(path), digests, lambda name, parts: shard_files.write_whole(str(path / name), parts)
    )
    assert found == {name: shard_files.digest_of(str(path / name)) for name in sorted(found)}
    return [shard_files.decode((path / name).read_bytes()) for name in sorted(found)]


def in_order(kept: ShardStates) -> Any:
    """Return the rows of all shards, and their other frames, so that they can be compared."""
    rows = joined_rows(unpacked(rows_only(kept)))
    told = {
        name: [own.values, {n: (a.dtype, a.tolist()) for n, a in own.arrays("").items()}]
        for name, own in rows.items()
    }
    others = [[data for data in frames if not is_of_rows(data)] for frames in kept]
    return told, [[(m.meta, [*map(str, m.arrays.items())]) for m in unpacked([own])] for own in others]


def tables_of(spread: int) -> dict[str, History]:
    return {"users": History(1, spread), "items": History(2, 0)}


def advance(tables: Mapping[str, History]) -> None:
    for table in tables.values():
        table.advance()
        table.advance()


@pytest.fixture(params=[1 << 21, 7], ids=["at once", "few ids at a time"])
def known(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "_KNOWN", request.param)
    monkeypatch.setattr(stored_rows, "_LEAST_BLOCK", 5)
    monkeypatch.setattr(stored_rows, "_KNOWN_SHARE", 1 << 30)
    monkeypatch.setattr(stored_rows, "LARGE", 1)


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    "counts", [(2, 2, 2, 2, 2), (1, 1, 3, 3, 3), (2, 3, 3, 1, 1), (1, 1, 1, 1, 4)], ids=str
)
@pytest.mark.parametrize("spread", [0, 8])
@pytest.mark.parametrize("all_at", [0, 3])
def test_what_is_merged_is_what_changes_lead_to(
    tmp_path: Path, counts: tuple[int, ...], spread: int, all_at: int
) -> None:
    tables, layers, base = tables_of(spread), list[ShardStates](), None
    path, digests = tmp_path, dict[str, str]()
    for step, count in enumerate(counts):
        advance(tables)
        # Changes cannot be told once: that one has all entries.
        logged = 2 * step + 1 if step and step == all_at else 0
        layers.append(kept_of(tables, count, 2 * step, logged))
        path = tmp_path / name_of(2 * step + 2)
        digests = write(path, layers[-1:])
        if step < len(counts) - 1:
            base = marked(path, digests, base)
    found = in_order(merged(tmp_path / name_of(8), path, digests))
    assert found == in_order(complete(layers))
    every = joined_rows(unpacked(rows_only(kept_of(tables, 1, 0))))
    for name, own in every.items():
        entries = found[0][name][1]
        for part in ("ids", "counts", "last", "admitted", "column.row", "column.exp_avg"):
            assert entries[part][1] == own.arrays("")[part].tolist()


def test_layers_of_one_checkpoint_are_merged(tmp_path: Path) -> None:
    tables, layers = tables_of(0), list[ShardStates]()
    for step in range(5):
        advance(tables)
        layers.append(kept_of(tables, 2, 2 * step))
    first, last = tmp_path / name_of(4), tmp_path / name_of(10)
    marked(first, write(first, layers[:2]), None)
    digests = write(last, layers[2:])
    assert sorted(digests)[0] == "below1-00000-of-00002.safetensors"
    assert in_order(merged(first, last, digests)) == in_order(complete(layers))


def test_no_row_is_left(tmp_path: Path) -> None:
    table = History(1, 0)
    table.advance()
    first, last = tmp_path / name_of(1), tmp_path / name_of(2)
    marked(first, write(first, [kept_of({"": table}, 1, 0)]), None)
    table.gone += [(own, 1) for own in table.rows]
    table.rows.clear()
    table.completed += 1
    digests = write(last, [kept_of({"": table}, 1, 1)])
    rows = joined_rows(unpacked(rows_only(merged(first, last, digests))))[""]
    assert len(rows.ids) == 0
    assert rows.columns[ROW].shape == rows.columns["exp_avg"].shape == (0, WIDTH)
    assert rows.columns[ROW].dtype == np.float32


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    table = History(1, 0)
    table.advance()
    first, last = tmp_path / name_of(1), tmp_path / name_of(2)
    marked(first, write(first, [kept_of({"": table}, 1, 0)]), None)
    table.advance()
    digests = write(last, [kept_of({"": table}, 1, 1)])
    (file,) = first.glob("shard-*")
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    before = sorted(path.name for path in last.iterdir())
    with pytest.raises(ConfigError, match="iteration-00000001 is damaged: shard-00000-of-00001"):
        merged(first, last, digests)
    assert sorted(path.name for path in last.iterdir()) == before


@pytest.mark.parametrize("change", ["length", "offsets", "dtype", "table", "no table", "short"])
def test_what_is_no_file_of_a_shard(tmp_path: Path, change: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(shard_files.encode([frame.pack({"kind": "state", "runs": []}, {"x": np.zeros(3)})]))
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    if change == "offsets":
        header["0.x"]["data_offsets"] = [0, 1 << 40]
    elif change == "length":
        header["0.x"]["shape"] = [4]
    elif change == "dtype":
        header["0.x"]["dtype"] = "X8"
    elif change == "table":
        header["__metadata__"]["sparkdl"] = json.dumps([{"meta": {}, "arrays": ["y"]}])
    elif change == "no table":
        del header["__metadata__"]
    told = json.dumps(header).encode()
    file.write_bytes(len(told).to_bytes(8, "little") + told + data[8 + length :])
    if change == "short":
        file.write_bytes(data[:20])
    with pytest.raises(ValueError, match="is not the file of a shard"):
        shard_files.ShardFile(str(file))


@pytest.mark.parametrize("spread", [0, 8])
@pytest.mark.parametrize(("since", "logged"), [(0, 0), (4, 0), (4, 4), (4, 5), (9, 0)])
def test_an_owner_writes_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: int, since: int, logged: int
) -> None:
    monkeypatch.setattr(shard_files, "LARGE", 50)
    tables = tables_of(spread)
    for _ in range(4):
        advance(tables)
    (kept,) = kept_of(tables, 1, 0, logged)
    list(shard_files.WriteShard(str(tmp_path), 1, since)(0, iter(kept)))
    found = shard_files.decode((tmp_path / shard_files.name_of(0, 1)).read_bytes())
    (changed,) = kept_of(tables, 1, since, logged)
    assert in_order([found]) == in_order([changed])
    assert joined_rows(unpacked([found[1:]]))["items"].since == (since if since >= logged else 0)


def test_changes_without_rows_below_them(tmp_path: Path) -> None:
    table = History(1, 0)
    table.advance()
    table.advance()
    first, last = tmp_path / name_of(1), tmp_path / name_of(2)
    marked(first, write(first, [kept_of({"": table}, 1, 1)]), None)
    with pytest.raises(ValueError, match="changes of table '' without rows below"):
        merged(first, last, write(last, [kept_of({"": table}, 1, 1)]))
    with pytest.raises(ValueError, match="shard-00000-of-00001.safetensors has no rows of table 'new'"):
        merged(first, last, write(last, [kept_of({"new": table}, 1, 1)]))


def test_what_is_written_is_as_long_as_was_said(tmp_path: Path) -> None:
    short = shard_files.Streamed(np.dtype(np.int64), (3,), lambda: [np.arange(2)])
    with pytest.raises(ValueError, match="'0.x' is 8 bytes shorter"):
        shard_files.write_whole(
            str(tmp_path / "file"), shard_files.parts_of([({"kind": "state"}, {"x": short})])
        )
    assert list(tmp_path.iterdir()) == []


def test_arrays_of_any_kind_are_read_in_parts(tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "none": np.zeros((0, 4), np.float32),
        "scalar": np.array(3.5),
        "bits": np.array([True, False]),
        "half": np.arange(6, dtype=np.float16).reshape(2, 3),
        "wide": np.zeros((3, 0), np.int32),
    }
    file = tmp_path / "file"
    file.write_bytes(shard_files.encode([frame.pack({"kind": "state"}, arrays)]))
    ((_, found),) = shard_files.ShardFile(str(file)).messages
    copy = tmp_path / "copy"
    streamed = {name: stored.streamed() for name, stored in found.items()}
    shard_files.write_whole(str(copy), shard_files.parts_of([({"kind": "state"}, streamed)]))
    assert copy.read_bytes() == file.read_bytes()
    for begin, stop in ((1, 3), (-1, 1), (2, 1)):
        with pytest.raises(IndexError, match=f"rows {begin} to {stop} of 2"):
            found["half"].read(begin, stop)
    assert torch.equal(torch.from_numpy(found["half"].read(1, 2)), torch.tensor([[3.0, 4.0, 5.0]]).half())
