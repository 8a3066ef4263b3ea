"""Rows that were exported are looked up as the module does."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from support.serving import save
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.ml import TorchModel
from sparkdl.nn import DeepFM, EmbeddingBagVariable, EmbeddingVariable
from sparkdl.nn.embedding import embedding_variables
from sparkdl.saved.served_rows import MARK
from sparkdl.saved.table_rows import ServedRows, export_rows, without_rows
from sparkdl.serve import Predictor

GENERATOR = np.random.default_rng(0)
IDS = np.unique(GENERATOR.integers(-(2**62), 2**62, 500))


@pytest.fixture
def module() -> nn.Module:
    module = nn.ModuleDict({"users": EmbeddingVariable(4, seed=1), "goods": EmbeddingBagVariable(3, seed=2)})
    for store in (module["users"].store, module["goods"].table.store):
        store.count(GENERATOR.permutation(IDS), np.ones(len(IDS), np.int64), 0, lambda rows: {})
    nn.init.ones_(module["users"].weight)
    return module


def test_exported_rows_are_those_of_the_module(module: nn.Module, tmp_path: Path) -> None:
    export_rows(module, tmp_path / "rows", per_file=64)
    served = ServedRows(tmp_path / "rows")
    assert served.names == ["users", "goods.table"]
    assert len(list((tmp_path / "rows").glob("table-00000-*"))) == 8
    asked = np.concatenate([GENERATOR.choice(IDS, 300), [7, -(2**63), 2**63 - 1]])
    with torch.no_grad():
        expected = module["users"](torch.from_numpy(asked)).numpy()
    assert served.look_up("users", asked).tobytes() == expected.tobytes()
    assert (served.look_up("goods.table", asked[-3:]) == 0).all()
    assert served.look_up("users", asked[:0]).shape == (0, 4)
    with pytest.raises(ConfigError, match="no table 'others'"):
        served.look_up("others", asked)


def test_what_is_damaged_or_taken_is_named(module: nn.Module, tmp_path: Path) -> None:
    export_rows(module, tmp_path)
    with pytest.raises(ConfigError, match="is not empty"):
        export_rows(module, tmp_path)
    with pytest.raises(ConfigError, match="no embedding variables"):
        export_rows(nn.Linear(1, 1), tmp_path / "other")
    file = tmp_path / "table-00001-part-00000.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-1] + b"!")
    with pytest.raises(ConfigError, match="table-00001-part-00000.safetensors is damaged"):
        ServedRows(tmp_path)
    file.unlink()
    with pytest.raises(ConfigError, match="table-00001-part-00000"):
        ServedRows(tmp_path)
    (tmp_path / MARK).write_text('{"format": 1, "tables": {"x": {"files": [{"name": "../secret"}]}}}')
    with pytest.raises(ConfigError, match="secret"):
        ServedRows(tmp_path)


def test_a_predictor_looks_rows_up_in_files(tmp_path: Path) -> None:
    module = DeepFM((None, None), embedding=4, variables={"seed": 1}).eval()
    for variable in embedding_variables(module).values():
        variable.store.count(IDS[:400], np.ones(400, np.int64), 0, lambda rows: {})
        nn.init.ones_(variable.weight)
    asked = GENERATOR.choice(IDS, (50, 2))  # some have no row
    with torch.no_grad():
        expected = module(torch.from_numpy(asked)).numpy()
    small = without_rows(module)
    assert all(not len(own.store) for own in embedding_variables(small).values())
    assert all(len(own.store) == 400 for own in embedding_variables(module).values())
    save(TorchModel.from_module(small, example=asked[:2], featuresCol="x"), tmp_path / "model")
    export_rows(module, tmp_path / "rows", per_file=64)
    predictor = Predictor.load(str(tmp_path / "model"), rows=tmp_path / "rows")
    assert predictor.predict(asked).tobytes() == expected.tobytes()
    assert Predictor.load(str(tmp_path / "model")).predict(asked).tobytes() != expected.tobytes()
    with pytest.raises(ConfigError, match="without rows="):
        predictor.refresh()

    export_rows(nn.ModuleDict({"other": EmbeddingVariable(4)}), tmp_path / "others")
    with pytest.raises(ConfigError, match="is not there, expected rows of"):
        Predictor.load(str(tmp_path / "model"), rows=tmp_path / "others")


def rewritten(folder: Path, **arrays: np.ndarray) -> None:
    """Write other arrays to a file of rows, with its checksum."""
    file, mark = folder / "table-00000-part-00000.safetensors", folder / MARK
    file.write_bytes(save_arrays({**load_arrays(file.read_bytes()), **arrays}))
    told = json.loads(mark.read_text())
    del told["seal"]
    told["tables"]["users"]["files"][0]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    mark.write_text(json.dumps(told))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"rows": np.ones((500, 1), np.float32)},
            r"table 'users' has rows of several shapes: \[\(1,\), \(4,\)\]",
        ),
        ({"rows": np.ones((500, 4), np.int64)}, "int64; expected int64, and as many rows of floats"),
        ({"ids": IDS.astype(np.float64)}, "float64, and rows of shape"),
        ({"ids": IDS[:0], "rows": np.ones((0, 4), np.float32)}, r"ids of shape \(0,\)"),
        ({"ids": IDS[::-1].copy()}, "part-00000.safetensors: its ids are not in order"),
        ({"ids": np.append(IDS[:-1], IDS[-2])}, "its ids are not in order"),
    ],
)
def test_rows_that_export_rows_would_not_write_are_refused(
    module: nn.Module, tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    export_rows(module, tmp_path)
    rewritten(tmp_path, **arrays)
    with pytest.raises(ConfigError, match=message):
        ServedRows(tmp_path)


@pytest.mark.parametrize("first", [10**30, 0, "x"])
def test_a_first_id_that_is_not_that_of_the_file_is_refused(
    module: nn.Module, tmp_path: Path, first: object
) -> None:
    export_rows(module, tmp_path)
    told = json.loads((tmp_path / MARK).read_text())
    told["tables"]["users"]["files"][0]["first"] = first
    del told["seal"]
    (tmp_path / MARK).write_text(json.dumps(told))
    with pytest.raises(ConfigError, match="its ids are not in order"):
        ServedRows(tmp_path)


def test_no_array_begins_before_the_data_of_its_file(module: nn.Module, tmp_path: Path) -> None:
    export_rows(module, tmp_path)
    header = json.dumps({"ids": {"dtype": "I64", "shape": [2], "data_offsets": [-16, 0]}}).encode()
    (tmp_path / "table-00000-part-00000.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(64)
    )
    with pytest.raises(ConfigError, match="ids has 16 bytes"):
        ServedRows(tmp_path, verify=False)


@pytest.mark.parametrize("name", [MARK, "table-00000-part-00000.safetensors"])
def test_nobody_waits_for_a_pipe(module: nn.Module, tmp_path: Path, name: str) -> None:
    export_rows(module, tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=f"{name} is not a regular file"):
        ServedRows(tmp_path)
