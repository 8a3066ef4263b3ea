"""Code that a process has loaded is told apart from other code, and from the same code elsewhere."""

# ruff: noqa: E501
from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkdl.code import pickling
from sparkdl.exceptions import SerializationError

Write = Callable[..., Any]
LOSS = "def loss(output, target):\n    return ((output - target) ** 2).mean() * {}\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module's file; load it if it is not loaded."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written: list[str] = []
    names = {"helpers": f"helpers_{uuid.uuid4().hex[:8]}", "model": f"model_{uuid.uuid4().hex[:8]}"}

    def put(text: str, name: str = "helpers", *, load: bool = True) -> Any:
        text = text.replace("HELPERS", names["helpers"])
        name = names[name]
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        written.append(name)
        stamp = 1_000_000_000 + len(written)
        os.utime(path, (stamp, stamp))
        importlib.invalidate_caches()
        if not load:
            return sys.modules.get(name)
        return importlib.reload(sys.modules[name]) if name in sys.modules else importlib.import_module(name)

    yield put
    for name in written:
        sys.modules.pop(name, None)


def told(obj: Any, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Return what another process would have sent."""
    monkeypatch.setattr(pickling, "_PROCESS", uuid.uuid4().hex)
    data = pickling.dumps(obj)
    monkeypatch.setattr(pickling, "_PROCESS", "this")
    return data


def forget(*modules: Any) -> None:
    for module in modules:
        sys.modules.pop(module.__name__, None)


CHANGES = {
    "code": (LOSS.format(2), LOSS.format(3)),
    "constant": ("SCALE = 2\n" + LOSS.format("SCALE"), "SCALE = 3\n" + LOSS.format("SCALE")),
    "default": (
        "def loss(o, t, scale=2):\n  return o * scale",
        "def loss(o, t, scale=3):\n  return o * scale",
    ),
    "class": (
        "class C:\n  scale = 2\n  def of(self, o): return o * self.scale\ndef loss(o, t): return C().of(o)",
        "class C:\n  scale = 3\n  def of(self, o): return o * self.scale\ndef loss(o, t): return C().of(o)",
    ),
    "called": (
        "def f(o): return o\n" + "def loss(o, t): return f(o)",
        "def f(o): return 3 * o\ndef loss(o, t): return f(o)",
    ),
    "decorated": (
        "import functools\n@functools.lru_cache\ndef f(o): return o\ndef loss(o, t): return f(o)",
        "import functools\n@functools.lru_cache\ndef f(o): return 3 * o\ndef loss(o, t): return f(o)",
    ),
    "lambda": (
        "f = lambda o: o\ndef loss(o, t): return f(o)",
        "f = lambda o: 3 * o\ndef loss(o, t): return f(o)",
    ),
    "list": ("W = [1, 2]\ndef loss(o, t): return o * W[1]", "W = [1, 3]\ndef loss(o, t): return o * W[1]"),
    "tensor": (
        "import torch\nW = torch.tensor([1., 2.])\ndef loss(o, t): return o * W",
        "import torch\nW = torch.tensor([1., 3.])\ndef loss(o, t): return o * W",
    ),
    "object": (
        "from torch import nn\nL = nn.L1Loss()\ndef loss(o, t): return L(o, t)",
        "from torch import nn\nL = nn.MSELoss()\ndef loss(o, t): return L(o, t)",
    ),
    "import": (
        "from math import sin as f\ndef loss(o, t): return f(o)",
        "from math import cos as f\ndef loss(o, t): return f(o)",
    ),
    "new name": ("def other(o): return o", "def loss(o, t): return o"),
}


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES)
def test_a_worker_that_has_loaded_old_code_loads_it_anew(
    write: Write, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    stale = write(old)
    forget(stale)
    data = told(write(new).loss, monkeypatch)
    sys.modules[stale.__name__] = stale
    found = pickling.loads(data)
    assert found is not getattr(stale, "loss", None)
    assert found is sys.modules[stale.__name__].loss
    assert pickling.loads(data) is found


@pytest.mark.parametrize("change", ["code", "constant", "default", "class", "called", "decorated", "lambda"])
def test_a_file_that_was_edited_and_not_loaded_is_named(
    write: Write, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    old, new = CHANGES[change]
    data = told(write(old).loss, monkeypatch)
    forget(write(new, load=False))
    with pytest.raises(SerializationError, match=r"helpers_.*\.py on this executor.*importlib.reload"):
        pickling.loads(data)


@pytest.mark.parametrize("change", CHANGES)
def test_so_is_one_that_was_edited_after_it_was_first_sent(
    write: Write, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    old, new = CHANGES[change]
    module = write(old)
    root = module.loss if change != "new name" else module.other
    told(root, monkeypatch)
    write(new, load=False)
    data = told(root, monkeypatch)
    forget(module)
    with pytest.raises((SerializationError, AttributeError), match="helpers_"):
        pickling.loads(data)


SAME = {
    "state": "import os, time, random\nPID, NOW, R = os.getpid(), time.time(), random.random()\n"
    "def loss(o, t): return o * PID * NOW * R",
    "counter": "CALLS = 0\ndef loss(o, t):\n  global CALLS\n  CALLS += 1\n  return o",
    "cache": "CACHE = {}\ndef loss(o, t): return CACHE.setdefault(o, o)",
    "counter of a class": "class C:\n  made = 0\n  def __init__(self): C.made += 1\ndef loss(o, t):\n  C()\n  return o",
    "logger": "import logging, threading\nlog, lock = logging.getLogger('x'), threading.Lock()\n"
    "def loss(o, t):\n  with lock: log.debug('x')\n  return o",
    "sets": "A = {'a', 'b', 'c', 'd'}\ndef loss(o, t): return o if o in {'x', 'y', 'z'} or o in A else t",
    "dataclass": "import dataclasses as d\n@d.dataclass\nclass P:\n  a: int = 1\n  b: list = d.field(default_factory=list)\n"
    "def loss(o, t): return P().a * o",
    "enum": "import enum\nclass E(enum.Enum):\n  a = 1\n  b = 2\ndef loss(o, t): return o * E.a.value",
    "nested": "def outer(k):\n  def inner(o):\n    return [o * k for _ in 'x']\n  return inner\nf = outer(2)\n"
    "def loss(o, t): return f(o)[0]",
    "module": "import torch\nfrom torch import nn\nclass Net(nn.Module):\n  '''Doc.'''\n  def __init__(self):\n"
    "    super().__init__()\n    self.layer = nn.Linear(2, 2)\n  @torch.no_grad()\n  def forward(self, x): return self.layer(x)\n"
    "NET = Net()\ndef loss(o, t):\n  '''Doc.'''\n  return NET(o)",
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_the_same_file_is_no_other_code(write: Write, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    module = write(text)
    module.loss(1, 1) if "torch" not in text else None
    data = told(module.loss, monkeypatch)
    forget(module)
    found = pickling.loads(data)
    assert pickling.loads(data) is found  # what differs by its nature is not loaded again


def test_comments_lines_and_docstrings_are_no_other_code(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write("def loss(o, t):\n  'Doc.'\n  return o")
    data = told(module.loss, monkeypatch)
    write(
        "# comment\n\n\ndef other(): pass\ndef loss(o, t):\n  'Other.'\n\n  # comment\n  return o", load=False
    )
    forget(module)
    pickling.loads(data)


def test_modules_that_import_from_a_stale_one_are_loaded_anew(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from HELPERS import loss\nclass Model:\n  def of(self, o, t): return loss(o, t)"
    stale = write("def loss(o, t): return 2"), write(text, "model")
    forget(*stale)
    write("def loss(o, t): return 3")
    data = told(write(text, "model").Model(), monkeypatch)
    for module in stale:
        sys.modules[module.__name__] = module
    assert pickling.loads(data).of(1, 1) == 3


def test_what_the_driver_has_put_into_a_module_is_refused(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = write("SCALE = 2\nclass C:\n  def of(self): return SCALE")
    module.SCALE = 5
    data = told(module.C(), monkeypatch)
    forget(module)
    with pytest.raises(SerializationError, match=r"helpers_.*SCALE is 2 .* on the driver 5"):
        pickling.loads(data)
    module = write("class C:\n  def of(self): return 1")
    module.C.of = lambda self: 7
    data = told(module.C(), monkeypatch)
    forget(module)
    with pytest.raises(SerializationError, match="other code"):
        pickling.loads(data)


def test_functions_of_a_notebook_reach_modules(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    stale = write("def loss(o, t): return 2")
    forget(stale)
    helpers = write("def loss(o, t): return 3")
    data = told(lambda o, t: helpers.loss(o, t), monkeypatch)
    sys.modules[stale.__name__] = stale
    assert pickling.loads(data)(1, 1) == 3


@pytest.mark.parametrize("options", [[], ["-OO"]])
def test_digests_are_those_of_other_processes(write: Write, tmp_path: Path, options: list[str]) -> None:
    names = []
    without_torch = [text for text in SAME.values() if "torch" not in text]
    for number, text in enumerate(without_torch):
        (tmp_path / f"same_{number}.py").write_text(text)
        names.append((f"same_{number}", "loss"))
    program = (
        "import importlib, json, sys; from sparkdl.code import modules; from sparkdl.code.walk import Walk;"
        "names, walk = json.loads(sys.argv[1]), Walk(modules.is_users);"
        "[importlib.import_module(name) for name, _ in names];"
        "walk.follow(names);"
        "print(json.dumps(walk.code))"
    )
    found = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
        command = [sys.executable, *options, "-c", program, json.dumps(names)]
        found.append(json.loads(subprocess.run(command, env=env, check=True, capture_output=True).stdout))
    assert found[0] == found[1]
    assert len(found[0]) > len(without_torch)


def test_libraries_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch import nn

    assert pickling.loaded_code_of(told(nn.MSELoss(), monkeypatch)) is None
