"""Files that come with installed packages."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def file_of(package: str, *path: str) -> Path:
    """Return the path of a file, or folder, of a package."""
    found = find_spec(package)
    if found is None or found.origin is None:
        raise SystemExit(f"the rows come with {package}: see conf/example-data.txt, or pip install {package}")
    return Path(found.origin).parent.joinpath(*path)
