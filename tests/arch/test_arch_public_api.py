import importlib
import subprocess
import sys
from types import ModuleType

import pytest

import sparkdl
from sparkdl.saved.allowlist import NAMES

LAZY = [
    "sparkdl",
    "sparkdl.auto",
    "sparkdl.data",
    "sparkdl.hf",
    "sparkdl.metrics",
    "sparkdl.ml",
    "sparkdl.nn",
]
EAGER = ["sparkdl.optim", "sparkdl.recsys", "sparkdl.train"]


def run_python(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout.split()


@pytest.mark.parametrize("package", [*LAZY, *EAGER])
def test_every_public_name_resolves_once(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


@pytest.mark.parametrize("package", EAGER)
def test_public_names_equal_all(package):
    module = importlib.import_module(package)
    public = {n for n, v in vars(module).items() if n[0] != "_" and not isinstance(v, ModuleType)}
    assert public - {"annotations", "TYPE_CHECKING"} == set(module.__all__)


@pytest.mark.parametrize("package", LAZY)
def test_dir_lists_the_lazy_names(package):
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="module 'sparkdl' has no attribute 'Trainr'"):
        sparkdl.Trainr  # noqa: B018


def test_importing_sparkdl_loads_neither_torch_nor_pyspark():
    loaded = run_python("import sys, sparkdl; print(*sys.modules)")
    assert not {"torch", "pyspark", "numpy", "pyarrow", "pandas"} & set(loaded)


def test_the_command_line_begins_without_large_libraries():
    loaded = run_python("import sys, sparkdl.__main__; print(*sys.modules)")
    assert not {"torch", "pyspark", "numpy", "pyarrow", "pandas"} & set(loaded)


def test_serving_loads_no_spark_and_training_nothing_optional():
    """One after the other in one process, which takes seconds."""
    loaded = run_python("""
import sys
import sparkdl.serve.predictor
print(*sys.modules, ";")
import torch
import sparkdl.nn.lightning
assert sparkdl.nn.lightning.from_lightning(torch.nn.Linear(1, 1)) is None
import sparkdl.ml, sparkdl.summary, sparkdl.train
print(*sys.modules)
""")
    serving = loaded[: loaded.index(";")]
    assert "torch" in serving
    assert not {"pyspark", "py4j"} & set(serving)
    assert {"sparkdl.ml", "sparkdl.summary", "sparkdl.train"} <= set(loaded)
    optional = {"torchmetrics", "scipy", "matplotlib", "transformers", "pandas", "tensorboard", "mlflow"}
    assert not optional & set(loaded)
    assert not [name for name in loaded if "lightning" in name and not name.startswith("sparkdl")]


def test_what_saved_models_may_name_is_there():
    own = {module: names for module, names in NAMES.items() if module.startswith("sparkdl.")}
    assert len(own) > 30
    missing = {
        f"{module}:{name}"
        for module, names in own.items()
        for name in names
        if not hasattr(importlib.import_module(module), name)
    }
    assert not missing
