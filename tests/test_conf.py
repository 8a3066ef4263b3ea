"""The files for spark-submit say what the session builder says."""

from __future__ import annotations

import re
import tomllib
import zipfile
from pathlib import Path

import pyspark
import pytest

from sparkdl import session

ROOT = Path(__file__).parents[1]
VERSION = tuple(map(int, re.findall(r"\d+", pyspark.__version__)[:2]))
FILES = sorted(ROOT.joinpath("conf").glob("*.conf"))  # links to sparkdl/conf, which is installed


def settings(path: Path) -> dict[str, str]:
    """Read a properties file; a name that comes twice is an error."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            name, value = line.split(maxsplit=1)
            assert name not in found, f"{name} twice"
            found[name] = value.strip()
    return found


def test_there_is_one_file_per_cluster_manager_and_one_for_spot_machines() -> None:
    assert [path.stem for path in FILES] == ["kubernetes", "local", "spot", "standalone", "yarn"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_holds_what_the_builder_sets(path: Path) -> None:
    found = settings(path)
    assert {name: found.get(name) for name in session.recommended()} == session.recommended()


@pytest.mark.parametrize("path", [p for p in FILES if p.stem != "spot"], ids=lambda path: path.stem)
def test_a_file_is_for_its_cluster_manager(path: Path) -> None:
    masters = {"kubernetes": "k8s://", "local": "local[", "standalone": "spark://", "yarn": "yarn"}
    assert settings(path)["spark.master"].startswith(masters[path.stem])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_setting_says_why(path: Path) -> None:
    previous = ""
    for line in path.read_text().splitlines():
        if line.startswith("spark."):
            assert previous.startswith("#"), f"no comment above {line}"
        previous = line


@pytest.mark.skipif(VERSION < (4, 1), reason="some settings are those of later versions")
def test_spark_knows_every_setting() -> None:
    texts = [*FILES, ROOT / "sparkdl" / "cli" / "templates.py"]
    names = {
        n
        for file in texts
        for n in re.findall(r'^(?:# )?"?(spark\.[\w.]+)"? ', file.read_text(), re.MULTILINE)
    }
    # Spark puts these together from the name of the transport and the rest.
    wanted = {re.sub(r"^spark\.shuffle\.(io\.)", r"\1", name) for name in names}
    wanted -= {name for name in wanted if name.startswith("spark.executorEnv.")}
    assert len(wanted) > 30
    for jar in Path(pyspark.__path__[0], "jars").glob("spark-*.jar"):
        with zipfile.ZipFile(jar) as archive:
            for name in archive.namelist():
                if name.endswith(".class") and re.search("[Cc]onf|Launcher", name):
                    content = archive.read(name)
                    wanted = {key for key in wanted if key.encode() not in content}
    assert not wanted


def test_pins_cover_every_direct_dependency() -> None:
    project = tomllib.loads(ROOT.joinpath("pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in ("examples", "dev"):
        wanted += project["optional-dependencies"][extra]
    pinned = [
        line for line in ROOT.joinpath("conf", "constraints.txt").read_text().splitlines() if line[0] != "#"
    ]
    name = re.compile(r"[A-Za-z0-9-]+")
    assert {name.match(line)[0] for line in pinned} == {name.match(line)[0] for line in wanted}  # type: ignore[index]
