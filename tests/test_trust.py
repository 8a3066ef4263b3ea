"""Models that name code which nobody trusts, through ``Predictor.load``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from sparkdl.exceptions import ConfigError
from sparkdl.saved import content as saved
from sparkdl.serve import Predictor

FORMAT_1 = Path(__file__).parent / "fixtures" / "format_1"


class Twice(nn.Module):
    """A module of the user's own package."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return 2 * self.out(x)


def naming(folder: Path, source: Any, name: str = "classifier", **attributes: Any) -> str:
    """Copy a saved model whose metadata then names something else."""
    shutil.copytree(FORMAT_1 / name, folder / "model")
    (text,) = (folder / "model").rglob("metadata/part-*")
    metadata = json.loads(text.read_text())
    metadata["sparkdl"]["module"]["source"] = source
    metadata["sparkdl"]["attributes"] = attributes
    text.write_text(json.dumps(metadata))
    return str(folder / "model")


def shell(folder: Path) -> dict[str, Any]:
    """Describe a module whose construction runs a shell command, under the rule of return annotations."""
    block = f"import os; os.system('touch {folder}/ran')"
    body = {"_graphmodule_cls_name": "G", "_code": "def forward(self): pass"}
    return {
        "path": "torch.fx.graph_module:reduce_graph_module",
        "arguments": {"body": body, "import_block": block},
    }


def fetching() -> dict[str, Any]:
    return {
        "path": "torchmetrics.functional.text.bert:_read_csv_from_url",
        "arguments": {"baseline_url": "http://localhost:1/x"},
    }


@pytest.mark.parametrize("kind", ["module", "nested", "attribute"])
@pytest.mark.parametrize("which", ["shell", "fetching"])
def test_a_model_cannot_run_a_command_or_fetch_a_url(kind: str, which: str, tmp_path: Path) -> None:
    harm = shell(tmp_path) if which == "shell" else fetching()
    built = {"$build": harm["path"], "arguments": harm["arguments"]}
    if kind == "module":
        path = naming(tmp_path, harm)
    elif kind == "nested":
        path = naming(tmp_path, {"path": "sparkdl.saved.source:sequential", "arguments": {"0": built}})
    else:
        path = naming(tmp_path, {"path": "torch.nn.modules.linear:Identity", "arguments": {}}, loss=built)
    for trust in ((), ["mypackage"], Twice):
        with pytest.raises(ConfigError, match="a saved model may name; it was not imported") as caught:
            Predictor.load(path, trust=trust)
        assert caught.value.code == "config-trust"
    assert not (tmp_path / "ran").exists()


def test_a_module_of_the_working_directory_is_not_run(tmp_path: Path) -> None:
    (tmp_path / "evilmod.py").write_text("from pathlib import Path\nPath('ran').touch()\n")
    program = """
import sys
from sparkdl import Predictor
for path in sys.argv[1:]:
    try:
        Predictor.load(path)
    except Exception as error:
        print(error)
"""
    paths = []
    for name in ("evilmod:Net", "unittest.__main__:main"):
        path = naming(tmp_path, {"path": name, "arguments": {}})
        paths.append(shutil.move(path, tmp_path / name.partition(":")[0]))
    done = subprocess.run(
        [sys.executable, "-c", program, *paths], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.count("was not imported") == 2
    assert "usage:" not in done.stdout + done.stderr  # of unittest
    assert not (tmp_path / "ran").exists()


def test_the_users_own_module(tmp_path: Path) -> None:
    source = {"path": f"{__name__}:Twice", "arguments": {}}
    with pytest.raises(ConfigError, match=rf"load\(path, trust=\['{__name__}'\]\)"):
        Predictor.load(naming(tmp_path, source, "pipeline_model/stages/" + stage()))
    for trust in ([Twice], Twice, __name__, [f"{__name__}:Twice"]):
        with pytest.raises(Exception, match="out.weight|weight"):  # of another module, but it was built
            Predictor.load(str(tmp_path / "model"), trust=trust)


def stage() -> str:
    (found,) = (FORMAT_1 / "pipeline_model" / "stages").glob("1_*")
    return found.name


def test_who_allows_a_pickle_trusts_the_rest_of_the_file(tmp_path: Path) -> None:
    path = naming(
        tmp_path, {"path": f"{__name__}:Twice", "arguments": {}}, "pipeline_model/stages/" + stage()
    )
    with pytest.raises(Exception, match="weight"):
        Predictor.load(path, pickle=True)


def test_a_dtype_is_no_way_in(tmp_path: Path) -> None:
    source = {"path": "torch.nn.modules.linear:Identity", "arguments": {"x": {"$dtype": "hub"}}}
    path = naming(tmp_path, source)
    with pytest.raises(ConfigError, match="'hub' is not a dtype of torch"):
        Predictor.load(path)


def test_content_is_built_of_listed_classes_by_default() -> None:
    info = {"attributes": {"loss": {"$import": f"{__name__}:Twice"}}, "module": None, "pickled": []}
    with pytest.raises(ConfigError, match="was not imported"):
        saved.build(info, "here", [], None)


def test_models_of_listed_classes_need_no_trust() -> None:
    predict = Predictor.load(str(FORMAT_1 / "classifier"))
    assert predict(np.zeros((2, 4), np.float32)).shape == (2, 3)
