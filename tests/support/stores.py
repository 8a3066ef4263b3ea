"""Files of partition stores and of fits, which nobody may leave behind."""

from __future__ import annotations

import os
from pathlib import Path


def store_files(folders: str | None = None) -> list[str]:
    """List files of partition stores in folders; by default in those of the executor that runs this."""
    found = []
    for folder in (os.environ.get("SPARK_LOCAL_DIRS", "") if folders is None else folders).split(","):
        found += [str(path) for path in Path(folder, "sparkdl").rglob("*.bin")]
        found += [str(path) for path in Path(folder, "sparkdl-fits").rglob("*") if path.is_file()]
    return found
