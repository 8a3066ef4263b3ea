"""A look at a Python process: versions, OpenMP, cores, local directories.

Tasks run this on executors that may lack sparkdl, so it travels by value and imports nothing of sparkdl.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

NEEDED_IN_TASKS = ("torch", "sparkdl", "numpy", "pyarrow", "cloudpickle")


def probe(rows: Iterable[int]) -> Iterator[dict[str, Any]]:
    """Look around on an executor; the function of a task."""
    import socket
    import tempfile
    import time

    for _ in rows:
        time.sleep(0.5)  # hold the slot, so that the other tasks go elsewhere
    folders = [d for d in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if d]
    unwritable = []
    for folder in folders:
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            unwritable.append(f"{folder}: {error.strerror}")
    packages = {name: version_of(name) for name in NEEDED_IN_TASKS}
    failures = {}
    for name in ("torch", "sparkdl"):
        try:
            import_module(name)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    yield {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": packages,
        "failures": failures,
        "has_bytecode": "torch" in failures or has_bytecode("torch"),
        "openmp": "none" if "torch" in failures else openmp_library(),
        "wait_policy": os.environ.get("OMP_WAIT_POLICY", "").lower(),
        "cores": cores(),
        "load": os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 0.0,
        "local_dirs": folders,
        "unwritable": unwritable,
        "free_bytes": min((shutil.disk_usage(d).free for d in folders if Path(d).is_dir()), default=0),
    }


def version_of(package: str) -> str | None:
    """Return the version of a package, ``None`` if it is not there. Runs in tasks, too."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        try:
            return str(import_module(package).__version__)  # on the path, but not installed by pip
        except (ImportError, AttributeError):
            return None


def has_bytecode(package: str) -> bool:
    """Return whether Python has kept what it compiled of a package, which must be loaded. Runs in tasks, too.

    If not, each process compiles it again: for torch that takes longer than all else that loading it does.
    """
    spec = sys.modules[package].__spec__
    return spec is None or spec.cached is None or Path(spec.cached).is_file()


def openmp_library() -> str:
    """Return the library whose parallel regions torch, already loaded, enters; runs in tasks, too."""
    import ctypes

    try:
        address = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
        for line in Path("/proc/self/maps").read_text().splitlines():
            low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
            if low <= address < high:
                return line.split()[-1]
    except (AttributeError, OSError):
        pass  # another platform or another runtime: it is only for information
    return "unknown"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
