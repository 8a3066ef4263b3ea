"""The doctor's findings, and their printed form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

NO_BYTECODE = (
    "has no compiled Python of torch, so that each Python process compiles it again, which takes seconds: "
    "unset PYTHONDONTWRITEBYTECODE there, or run python -m compileall -q -j 0 on its packages once"
)
"""What follows the name of a machine where that is so."""


@dataclass(slots=True)
class DoctorReport:
    """What was found."""

    # of Python, Java and the packages, by name; ``None`` if missing
    versions: dict[str, str | None] = field(default_factory=dict)
    compute: dict[str, str] = field(default_factory=dict)  # linear algebra and OpenMP of this process
    spark: dict[str, Any] = field(default_factory=dict)  # master, executors, threads per task
    tasks: list[dict[str, Any]] = field(default_factory=list)  # what tasks found on each executor
    # per setting its name, what was found, what is wanted, and whether it will do
    confs: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)  # what keeps this setup from training
    advice: list[str] = field(default_factory=list)  # what would make it better

    @property
    def can_train(self) -> bool:
        """Whether nothing keeps this setup from training."""
        return not self.problems


def render(report: DoctorReport) -> str:
    """Lay a report out for people."""
    lines = ["versions", *_table({k: v or "missing" for k, v in report.versions.items()})]
    if report.compute:
        lines += ["compute", *_table(report.compute)]
    if report.spark:
        spark = {"Spark": f"{report.spark['version']}, {report.spark['master']}"}
        if "executors" in report.spark:
            spark["executors"] = f"{report.spark['executors']} with {report.spark['slots']} task slots each"
            spark["threads"] = (
                f"{report.spark['threads_per_task']} per task with one partition per executor (the default)"
            )
        lines += ["session", *_table(spark)]
    for task in report.tasks:
        packages = ", ".join(f"{k} {v or 'missing'}" for k, v in task["packages"].items())
        folders = ", ".join(task["local_dirs"]) or "no folder"
        lines += [
            f"executor on {task['host']}",
            *_table(
                {
                    "python": f"{task['python']}, {task['executable']}",
                    "packages": packages,
                    "OpenMP": task["openmp"],
                    "cores": str(task["cores"]),
                    "disk": f"{size(task['free_bytes'])} free in {folders}",
                }
            ),
        ]
    if report.confs:
        lines.append("confs")
    for conf in report.confs:
        found = conf["found"] if conf["found"] is not None else "not set"
        lines.append(f"  {conf['name']} = {found}" + ("" if conf["ok"] else f", wanted {conf['wanted']}"))
    if report.problems:
        lines += ["what keeps this setup from training", *(f"  - {line}" for line in report.problems)]
    if report.advice:
        lines += ["what to change", *(f"  - {line}" for line in report.advice)]
    lines.append("This setup can train." if report.can_train else "This setup cannot train.")
    return "\n".join(lines)


def _table(rows: dict[str, str]) -> list[str]:
    width = max(map(len, rows))
    return [f"  {name:<{width}}  {value}" for name, value in rows.items()]


def size(count: int) -> str:
    """Return bytes as people read them."""
    return f"{count / 2**30:.1f} GiB"
