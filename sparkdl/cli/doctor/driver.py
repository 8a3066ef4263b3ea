"""Checks of the driver's machine: Python, Java, packages, linear algebra."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from sparkdl.cli.doctor.probe import cores, has_bytecode, openmp_library, version_of
from sparkdl.cli.doctor.report import NO_BYTECODE, DoctorReport

_REQUIRED = ("pyspark", "torch", "numpy", "pyarrow", "cloudpickle", "pandas")
_OPTIONAL = ("mkl",)
_JAVA = 17


def check_driver(report: DoctorReport) -> None:
    """Report versions and compute of this process, and what is missing."""
    report.versions = {
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("sparkdl", *_REQUIRED, *_OPTIONAL)},
        "java": _java_version(),
    }
    for name in _REQUIRED:
        if report.versions[name] is None:
            report.problems.append(f"{name} is not installed: pip install {name}")
    java = report.versions["java"]
    if java is None:
        report.problems.append(
            f"no Java found: install a Java {_JAVA} runtime and set JAVA_HOME, or put java on the PATH"
        )
    elif int(java.split(".")[0]) < _JAVA:
        report.problems.append(f"Java {java} found: install Java {_JAVA} or later and set JAVA_HOME to it")
    if report.versions["torch"] is not None:
        report.compute = _compute(report)


def _java_version() -> str | None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(?:1\.)?([^"]+)"', answer.stderr + answer.stdout)
    return found.group(1) if found else None


def _compute(report: DoctorReport) -> dict[str, str]:
    import torch

    config = torch.__config__.show()

    def first(pattern: str, default: str) -> str:
        found = re.search(pattern, config)
        return found.group(1) if found else default

    if not has_bytecode("torch"):
        report.advice.append(f"this driver {NO_BYTECODE}")
    backends: Any = torch.backends
    mkl, mkldnn = backends.mkl.is_available(), backends.mkldnn.is_available()
    if platform.machine() in ("x86_64", "AMD64") and not mkl:
        report.advice.append(
            "this torch has no MKL: matrix products are several times slower; install torch's own wheels"
        )
    blas = first(r"BLAS_INFO=(\w+)", "unknown")
    return {
        "BLAS": "MKL " + first(r"Math Kernel Library Version (\S+?)-", "") if mkl else blas,
        "oneDNN": first(r"MKL-DNN v(\S+)", "yes") if mkldnn else "no",
        "CPU": first(r"CPU capability usage: (\S+)", "unknown"),
        "OpenMP": openmp_library(),
        "cores": str(cores()),
    }
