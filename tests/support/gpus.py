"""Confs of a cluster of this machine whose executors have a GPU."""

from __future__ import annotations

import stat
from pathlib import Path


def one_gpu(folder: Path) -> dict[str, str]:
    """Return the confs that give each executor GPU 0, whether there is one or not, for two tasks."""
    script = folder / "gpus"
    script.write_text("""#!/bin/sh\necho '{"name": "gpu", "addresses": ["0"]}'\n""")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {
        "spark.worker.resource.gpu.amount": "1",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": str(script),
        "spark.task.resource.gpu.amount": "0.5",
    }
