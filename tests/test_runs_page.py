"""The page that ``sparkdl runs --html`` writes: what it says, and what it does not let in."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.runs import FakeRun
from test_runs import FOREIGN

import sparkdl.cli
from sparkdl.__main__ import main
from sparkdl.cli.runs.found import RunSummary
from sparkdl.cli.runs.page import differing, names_of
from sparkdl.summary import JsonLines

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\""


class Parsed(HTMLParser):
    """What a browser would find: elements, attributes, and the texts of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open, []).append(data)


def written(folder: Path) -> str:
    target = folder / "page.html"
    assert main(["runs", str(folder), "--html", str(target)]) == 0
    return target.read_text()


def data(page: str) -> list[dict[str, Any]]:
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    runs: list[dict[str, Any]] = json.loads(found)
    return runs


# A document of which only the SVG is looked at.
DOCUMENT = """
const shapes = [];
const element = (name) => ({ name, set: {}, namespaceURI: "http://www.w3.org/2000/svg", append() {},
    setAttribute(key, value) { this.set[key] = value; } });
const document = { createElementNS(_, name) { shapes.push(element(name)); return shapes.at(-1); } };
"""


def drawn(points: Any) -> tuple[list[str], dict[str, Any]]:
    """Return the texts of the page's chart of a loss, and the places of its lines by class."""
    script = Path(sparkdl.cli.__file__).with_name("runs").joinpath("page.js").read_text()
    constants = re.findall(r"^const [A-Z].*?;", script, re.MULTILINE)
    functions = [re.search(rf"^function {n}\(.*?^}}$", script, re.DOTALL | re.MULTILINE) for n in PARTS]
    run = f"""
        chart(element("svg"), "loss", [{{ name: "run", side: "a", points: {json.dumps(points)} }}]);
        console.log(JSON.stringify(shapes.map((s) => [s.name, s.set, s.textContent])));
    """
    code = "\n".join([DOCUMENT, *constants, *(found[0] for found in functions if found), run])
    out = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True).stdout
    shapes = json.loads(out)
    lines = {
        each["class"]: np.array([pair.split(",") for pair in each["points"].split()], float)
        for name, each, *_ in shapes
        if name == "polyline"
    }
    return [text for name, _, text in shapes if name == "text"], lines


PARTS = ("add", "short", "ticks", "smoothed", "usual", "chart")


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_noisy_loss_is_smoothed_with_the_raw_one_behind_it() -> None:
    steps = np.arange(300)
    truth = np.exp(-steps / 60)
    loss = truth + np.random.default_rng(0).normal(0, 0.05, 300)
    texts, lines = drawn(np.stack([steps, loss], 1).tolist())
    assert texts[0] == "loss, smoothed"
    assert list(lines) == ["a raw", "a"]  # what comes later lies above
    raw, smooth = lines["a raw"], lines["a"]
    assert len(raw) == len(smooth) == 300
    slope, offset = np.polyfit(loss[5:-5], raw[5:-5, 1], 1)  # of places on the page by values
    found = (smooth[:, 1] - offset) / slope
    assert abs(found - truth)[20:-5].max() < 0.06 < abs(loss - truth).max()
    assert found[0] == pytest.approx(loss[0], abs=0.01)


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_a_short_loss_is_drawn_as_it_is() -> None:
    texts, lines = drawn([[n, float(n % 3)] for n in range(10)])
    assert texts[0] == "loss"
    assert list(lines) == ["a"]


def test_it_has_the_list_the_curves_and_the_settings(tmp_path: Path) -> None:
    for name, size in (("first", 64), ("second", 128)):
        run = FakeRun(steps=4, name=name, batch_size=size)
        run.train(JsonLines(tmp_path / name / "history.jsonl"), iterations=8)
    page = written(tmp_path)
    first, second = sorted(data(page), key=lambda run: run["facts"]["name"])
    assert (first["settings"]["batch_size"], second["settings"]["batch_size"]) == ("64", "128")
    assert first["series"]["val/accuracy"] == [[4, 0.8], [8, 1 - 1 / 9]]
    assert first["series"]["loss"][-1] == [8, 0.125]
    assert first["facts"]["best score"] == "0.8889 (val/accuracy)"
    assert "attempt" not in [text for text in Parsed(page).texts["th"] if text == "attempt"]
    assert page.count("<details>") == 2


def test_what_differs_comes_first_and_folders_name_the_runs(tmp_path: Path) -> None:
    for lr in (0.1, 0.01):
        run = FakeRun(name="TorchClassifier", optimizer=partial(torch.optim.SGD, lr=lr))
        run.train(JsonLines(tmp_path / f"rate-{lr}" / "history.jsonl"))
    told = Parsed(written(tmp_path)).texts
    assert told["th"][:2] == ["run", "learning rate"]
    assert told["span"][0].startswith("rate-0.")
    (common,) = [text for text in told["p"] if text.startswith("In all runs: name TorchClassifier")]
    assert "learning_rate" not in common


@pytest.mark.parametrize(
    ("paths", "names"),
    [
        (["a/history.jsonl", "b/history.jsonl"], ["a", "b"]),
        (["logs/a.jsonl", "logs/b.jsonl"], ["logs/a", "logs/b"]),
        (["history.jsonl"], ["history"]),
        (["logs/twice.jsonl", "logs/twice.jsonl"], ["logs", "logs (2)"]),
        (["a/x.jsonl", "a/checkpoints.v2"], ["a", "a/checkpoints.v2"]),
    ],
)
def test_runs_are_named_by_their_folders(paths: list[str], names: list[str]) -> None:
    assert names_of([RunSummary(path) for path in paths]) == names


def test_settings_differ_in_the_order_of_what_matters() -> None:
    first = {"zeal": "1", "batch_size": "32", "optimizer": "SGD(lr=0.1)", "learning_rate": "0.1", "seed": "0"}
    second = first | {"zeal": "2", "batch_size": "64", "optimizer": "SGD(lr=0.2)", "learning_rate": "0.2"}
    assert differing([first, second, {}]) == ["learning_rate", "batch_size", "zeal"]
    third = second | {"optimizer": "Adam(lr=0.2)"}
    assert differing([second, third]) == ["optimizer"]
    assert differing([first]) == []


def test_it_loads_nothing_and_runs_one_script(tmp_path: Path) -> None:
    FakeRun().train(JsonLines(tmp_path / "a.jsonl"))
    page = written(tmp_path)
    for tag, attributes in Parsed(page).tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "a")
        assert not {"src", "href", "action", "srcset"} & attributes.keys()
    (policy,) = [a["content"] for t, a in Parsed(page).tags if a.get("http-equiv")]
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "url(" not in page
    assert "prefers-color-scheme: dark" in page


def test_the_policy_names_the_script_that_is_there(tmp_path: Path) -> None:
    import base64
    import hashlib

    FakeRun().train(JsonLines(tmp_path / "a.jsonl"))
    page = written(tmp_path)
    script = page.rpartition("<script>")[2].partition("</script>")[0]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in page
    assert "innerHTML" not in script


def test_nothing_in_a_runs_files_becomes_html(tmp_path: Path) -> None:
    folder = tmp_path / "a&b<i>"
    run = FakeRun(steps=2, name=EVIL)
    hook = JsonLines(folder / "<b>.jsonl")
    hook.on_train_begin(run)
    for _ in range(2):
        run.iterate(hook, validate=False)
    run.validate({EVIL: 0.5}, hook, name=EVIL)
    run.iterate(hook, validate=False)
    run.validate({EVIL: 0.75}, hook, name=EVIL)
    hook.on_train_end(run)
    lines = (folder / "<b>.jsonl").read_text().splitlines()
    begin = json.loads(lines[0]) | {"settings": {EVIL: EVIL, "spark.password": "wJalr"}}
    (folder / "<b>.jsonl").write_text("\n".join([json.dumps(begin), *lines[1:]]))
    page = written(folder)
    found = Parsed(page)
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 2
    assert {"img", "i"} & set(tags) == set()
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    assert "<script>alert" not in page
    assert "wJalr" not in page
    (told,) = data(page)
    assert told["facts"]["name"] == EVIL
    assert told["settings"][EVIL] == EVIL
    assert f"{EVIL}/{EVIL}" in told["series"]


def test_foreign_files_and_runs_without_curves_have_a_page(tmp_path: Path, capsys: Any) -> None:
    for name, content in FOREIGN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    (tmp_path / "settings.jsonl").write_text(
        '{"kind": "begin", "settings": {"a": {"b": 1}, "c": null, "\\ud800": 2}}\n'
        '{"kind": "iteration", "iteration": 1, "loss": "nan", "lr": [], "seconds": "x"}\n'
        '{"kind": "validation", "iteration": 1, "name": 3, "x": {}, "y": 1e400}\n'
        '{"kind": "begin", "settings": [1]}\n'
    )
    data(written(tmp_path)).__len__()
    assert main(["runs", str(tmp_path), "--json", "--html", str(tmp_path / "x.html")]) == 0
    assert "course" not in capsys.readouterr().out


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    rows = [json.dumps({"kind": "iteration", "iteration": n, "loss": 1 / n}) for n in range(1, 30_001)]
    (tmp_path / "long.jsonl").write_text('{"kind": "begin"}\n' + "\n".join(rows))
    page = written(tmp_path)
    assert len(page) < 60_000
    ((first, *_, last),) = [run["series"]["loss"] for run in data(page)]
    assert last == [30_000, 1 / 30_000]
    assert first[0] < 40


def test_a_page_that_cannot_be_written_is_told(tmp_path: Path, capsys: Any) -> None:
    FakeRun().train(JsonLines(tmp_path / "a.jsonl"))
    assert main(["runs", str(tmp_path), "--html", str(tmp_path)]) == 1
    assert "cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("again", [4, 0])
def test_of_an_iteration_that_ran_again_the_last_value_counts(tmp_path: Path, again: int) -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "begin", "iteration": 0},
        *({"kind": "iteration", "iteration": n, "loss": 1.0} for n in range(1, 6)),
        {"kind": "begin", "iteration": again, "attempt": 2},
        *({"kind": "iteration", "iteration": n, "loss": 2.0} for n in range(again + 1, 7)),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    page = written(tmp_path)
    found = [[y for _, y in run["series"]["loss"]] for run in data(page)]
    assert found == ([[1, 1, 1, 1, 2, 2]] if again else [[1] * 5, [2] * 6])
    assert "attempt" in Parsed(page).texts["th"]
