"""The guide from an empty directory to a model, as a new user would follow it: every command, in order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "first_model.md"
BLOCK = re.compile(r"^```sh ?(?P<info>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = [pytest.mark.slow, pytest.mark.cluster]


def test_the_guide(tmp_path: Path) -> None:
    script = ["set -euo pipefail"]
    for block in BLOCK.finditer(GUIDE.read_text()):
        if block["info"] == "fails":
            script.append(f"if {block['code'].strip()} 2>>refused; then exit 9; fi")
        elif block["info"] != "no-run":
            script.append(block["code"])
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash"],
        input="\n".join(script),
        cwd=tmp_path,
        env=os.environ | {"PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    scores = [float(value) for value in re.findall(r"^val/accuracy=(.*)$", done.stdout, re.MULTILINE)]
    assert len(scores) == 2
    assert min(scores) > 0.9, scores
    assert "['fails', 'runs']" in done.stdout
    refused = " ".join((tmp_path / "refused").read_text().split())
    for shown in re.findall(r"^```text\n(sparkdl: .*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        assert " ".join(shown.split()) in refused
