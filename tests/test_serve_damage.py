"""Saved models that are not what was saved: told, or harmless."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.mutations import (
    Link,
    Tree,
    damaged_bytes,
    damaged_json,
    damaged_safetensors,
    damaged_tree,
    damaged_value,
    read_tree,
    write_tree,
)
from support.saving import METADATA, cut, describe, folder_of, parquet
from torch import nn

from sparkdl.exceptions import ConfigError, ModelError, SparkdlError
from sparkdl.nn.signature import Signature, TensorSpec
from sparkdl.saved import integrity
from sparkdl.saved.content import Content
from sparkdl.saved.metadata import FORMAT, KEY
from sparkdl.serve import Predictor

FORMAT_1 = Path(__file__).parent / "fixtures" / "format_1" / "classifier"
QUICK = 150  # of what all 2,000 are in the slow test
MANY = {"deadline": None, "database": None, "suppress_health_check": list(HealthCheck)}
X = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def content() -> Content:
    """Layers with arguments, buffers, a frozen tensor, and a signature."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LeakyReLU(0.25), nn.Linear(4, 2))
    module(torch.randn(8, 3))  # moves the statistics
    module[0].weight.requires_grad_(False)
    signature = Signature((TensorSpec((3,), "float32"),), (TensorSpec((2,), "float32"),))
    return Content(module.eval(), signature=signature)


EXPECTED = Predictor(content().module)(X)  # type: ignore[arg-type]
DESCRIPTION, STREAMS = describe(content())
del STREAMS["code"]
IMPORTED = {"encodings", "fsspec", "numpy", "pyarrow", "torch"}  # parts that these load when they need them
TREE = folder_of(json.loads(json.dumps(DESCRIPTION)), STREAMS)


@contextmanager
def written(tree: Tree) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp())
    try:
        yield str(write_tree(tree, folder / "model"))
    finally:
        shutil.rmtree(folder)


@st.composite
def damaged_parquet(draw: st.DrawFn, data: bytes) -> bytes:
    """Change rows of a sound file: another place, other bytes, null, gone, twice, or in two."""
    rows = [(row["offset"], row["data"]) for row in pq.read_table(BytesIO(data)).to_pylist()]
    at = draw(st.integers(0, len(rows) - 1))
    offset, piece = rows[at]
    change = {
        "gone": [],
        "twice": [(offset, piece)] * 2,
        "moved": [(offset + draw(st.sampled_from([1, -1, 8, -(2**62), 2**62, 64, -64])), piece)],
        "longer": [(offset, piece + piece)],
        "shorter": [(offset, piece[:-1])],
        "empty": [(offset, b""), (offset, piece)],
        "in two": [(offset, piece[:7]), (offset + 7, piece[7:])],
        "others": [(offset, draw(damaged_bytes(piece)))],
        "upon another": [(rows[0][0], piece)],
        "null": [(None, piece)],
        "nothing": [(offset, None)],
    }
    rows[at : at + 1] = change[draw(st.sampled_from(sorted(change)))]
    return parquet(rows)


def check(tree: Tree) -> None:
    """Load a folder: an error of ours, or what was saved."""
    before = set(sys.modules)
    with written(tree) as path, suppress(SparkdlError):
        np.testing.assert_array_equal(Predictor.load(path)(X), EXPECTED)
    assert not {name.partition(".")[0] for name in set(sys.modules) - before} - IMPORTED


DAMAGED = damaged_tree(TREE, {".txt": damaged_json, ".parquet": damaged_parquet})


@settings(max_examples=QUICK, **MANY)  # type: ignore[arg-type]
@given(DAMAGED)
def test_damage_is_told_or_does_no_harm(tree: Tree) -> None:
    check(tree)


@pytest.mark.slow
@settings(max_examples=2000, **MANY)  # type: ignore[arg-type]
@given(DAMAGED)
def test_damage_of_any_kind_is_told_or_does_no_harm(tree: Tree) -> None:
    check(tree)


@st.composite
def made_up(draw: st.DrawFn) -> Tree:
    """Damage with checksums that fit, or without any: what somebody might write on purpose."""
    metadata, streams = json.loads(json.dumps(DESCRIPTION)), dict(STREAMS)
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["metadata", "metadata", "header", "bytes"]))
        if kind == "metadata":
            entry = draw(st.sampled_from([KEY, "module", "source", "signature", "attributes"]))
            holder = metadata if entry == KEY else metadata[KEY]
            holder = holder["module"] if entry in ("source", "signature") else holder
            if isinstance(holder, dict) and entry in holder:
                holder[entry] = draw(damaged_value(holder[entry]))
            if not isinstance(metadata.get(KEY), dict) or not isinstance(metadata[KEY].get("module"), dict):
                break
        else:
            sound = streams["weights"] is STREAMS["weights"]
            damage = damaged_safetensors if kind == "header" and sound else damaged_bytes
            streams["weights"] = draw(damage(streams["weights"]))
    if isinstance(metadata.get(KEY), dict):
        metadata[KEY]["format"] = draw(st.sampled_from([1, FORMAT]))
        return folder_of(metadata, streams, draw(st.sampled_from([16, 64, 10_000])))
    return {**TREE, METADATA: json.dumps(metadata).encode()}


def check_made_up(tree: Tree) -> None:
    with written(tree) as path, suppress(SparkdlError):
        Predictor.load(path)


@settings(max_examples=QUICK, **MANY)  # type: ignore[arg-type]
@given(made_up())
def test_what_is_made_up_is_told_or_does_no_harm(tree: Tree) -> None:
    check_made_up(tree)


@pytest.mark.slow
@settings(max_examples=2000, **MANY)  # type: ignore[arg-type]
@given(made_up())
def test_what_is_made_up_in_any_way_is_told_or_does_no_harm(tree: Tree) -> None:
    check_made_up(tree)


# -- one by one -------------------------------------------------------------------------------------


def edited(entry: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**entry, **changes}


def test_a_flipped_bit_in_the_weights_is_told() -> None:
    tree = dict(TREE)
    name = "weights/part-1.parquet"
    rows = [(row["offset"], row["data"]) for row in pq.read_table(BytesIO(tree[name])).to_pylist()]  # type: ignore[arg-type]
    offset, data = rows[-1]
    rows[-1] = (offset, bytes([data[0] ^ 1]) + data[1:])
    tree[name] = parquet(rows)
    with written(tree) as path, pytest.raises(ConfigError, match="the weights are damaged: the checksum is"):
        Predictor.load(path)


def test_another_argument_in_the_metadata_is_told() -> None:
    text = TREE[METADATA]
    assert isinstance(text, bytes)
    assert b"0.25" in text
    tree = {**TREE, METADATA: text.replace(b"0.25", b"0.75")}
    with written(tree) as path, pytest.raises(ConfigError, match="the metadata is damaged: the checksum is"):
        Predictor.load(path)


def test_checksums_may_not_be_left_out() -> None:
    metadata = json.loads(TREE[METADATA])  # type: ignore[arg-type]
    for digests in (None, {}, 3, {"metadata": None}, {"metadata": {}}):
        metadata["sparkdl"]["sha256"] = digests
        tree = {**TREE, METADATA: json.dumps(metadata).encode()}
        with written(tree) as path, pytest.raises(ConfigError, match="the metadata is damaged"):
            Predictor.load(path)
    rest = {key: value for key, value in metadata.items() if key != "sparkdl"}
    for missing in ("weights", "metadata"):
        info = {**DESCRIPTION["sparkdl"], "sha256": {}}
        if missing == "weights":
            info["sha256"]["metadata"] = integrity.of_json({**rest, "sparkdl": info})
        tree = {**TREE, METADATA: json.dumps({**rest, "sparkdl": info}).encode()}
        with written(tree) as path, pytest.raises(ConfigError):
            Predictor.load(path)


def test_models_of_format_1_have_no_checksums_and_are_read() -> None:
    metadata = json.loads(json.dumps(DESCRIPTION))
    metadata["sparkdl"]["format"] = 1
    with written(folder_of(metadata, STREAMS)) as path:
        np.testing.assert_array_equal(Predictor.load(path)(X), EXPECTED)
    with written(read_tree(FORMAT_1)) as path:
        assert Predictor.load(path)(np.zeros((1, 4))).shape == (1, 3)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"class": 1, "class": 2}',
        b'{"sparkdl": {"format": true}}',
        b'{"sparkdl": {"format": 1e999}}',
        b"9" * 10_000,
        b"\xff\xfe",
        b'{"paramMap": {"stageUids": 3}}',
        b'{"paramMap": 3, "sparkdl": {"format": 1}}',
        b'{"class": 3, "uid": "x", "sparkdl": {"format": 1, "module": {}, "attributes": {}, "pickled": []}}',
    ],
)
def test_metadata_that_is_none(text: bytes) -> None:
    with written({**TREE, METADATA: text}) as path, pytest.raises(ConfigError) as caught:
        Predictor.load(path)
    assert caught.value.code == "config-saved"


def test_metadata_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkdl.saved.metadata.LONGEST_METADATA", 500)
    with written(TREE) as path, pytest.raises(ConfigError, match="expected at most 500"):
        Predictor.load(path)
    with pytest.raises(ConfigError, match="cannot be saved: its metadata has"):
        folder_of(json.loads(json.dumps(DESCRIPTION)), STREAMS)


@pytest.mark.parametrize("name", ["metadata", METADATA, "weights", "weights/part-0.parquet"])
@pytest.mark.parametrize("target", ["/dev/zero", "/etc/passwd", "/", "/nowhere", "loop", "../../other"])
def test_links_out_of_the_folder_are_not_followed(tmp_path: Path, name: str, target: str) -> None:
    write_tree(TREE, tmp_path / "other")
    tree: Tree = {other: data for other, data in TREE.items() if not other.startswith(name)}
    target = name.rpartition("/")[2] if target == "loop" else target
    write_tree({**tree, name: Link(target)}, tmp_path / "model")
    with pytest.raises(ConfigError, match="leads to|cannot be read|nothing complete"):
        Predictor.load(str(tmp_path / "model"))


def test_links_inside_of_the_folder_and_to_it_are_followed(tmp_path: Path) -> None:
    tree = {f"..data/{name}": data for name, data in TREE.items()}  # as volumes of Kubernetes have it
    links = {name: Link(f"..data/{name}") for name in ("metadata", "weights")}
    write_tree({**tree, **links}, tmp_path / "model")
    (tmp_path / "link").symlink_to("model")
    np.testing.assert_array_equal(Predictor.load(str(tmp_path / "link"))(X), EXPECTED)


def test_paths_are_not_patterns(tmp_path: Path) -> None:
    for name in ("a[b]", "{x,y}", "w*", "q?", "back\\slash"):
        path = write_tree(TREE, tmp_path / name)
        np.testing.assert_array_equal(Predictor.load(str(path))(X), EXPECTED)
    with pytest.raises(ConfigError, match="nothing complete"):
        Predictor.load(str(tmp_path / "[a]*"))


def test_terabytes_are_not_allocated() -> None:
    for size in (2**31, 2**40, 2**62):
        metadata = json.loads(json.dumps(DESCRIPTION))
        layers = metadata["sparkdl"]["module"]["source"]["arguments"]
        layers["0"]["arguments"]["out_features"] = size
        with written(folder_of(metadata, STREAMS)) as path, pytest.raises((ModelError, ConfigError)):
            Predictor.load(path)


def test_a_header_may_promise_more_than_there_is() -> None:
    """As it may lie in a file without checksums."""
    entry = {"dtype": "F32", "shape": [2**50], "data_offsets": [0, 2**52]}
    text = json.dumps({"0.weight": entry}).encode()
    header = len(text).to_bytes(8, "little") + text
    metadata = json.loads(json.dumps(DESCRIPTION))
    metadata["sparkdl"]["format"] = 1
    for rest in (b"", b"1234"):
        with written(folder_of(metadata, {"weights": header + rest})) as path, pytest.raises(ConfigError):
            Predictor.load(path)
    assert cut(header, 64) == [(0, header)]
