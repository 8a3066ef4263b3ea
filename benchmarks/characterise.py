"""Record the bits that training ends with, for a matrix of small cases, and compare two recordings.

    python benchmarks/characterise.py --json before.json
    python benchmarks/characterise.py --json after.json --compare before.json
    python benchmarks/characterise.py --only 'sharded/*/lamb*'

Made for changes of the engine that must not change a bit: run it before and after. Each case trains 20
iterations on ``local[2]``, all in one session, and is recorded as soon as it has ended: sha256 of the weights
(parameters, buffers, counters), of the losses, and of what else can be seen of a run. Bits depend on the
machine and on the versions of torch and numpy, which are recorded, too.

Cases are named by plans. ``--names`` says how the options of the tree at hand call them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any

import keeping
import numpy as np
import torch
from characterise_cases import BATCH, ITERATIONS, Case, matrix
from characterise_parts import LAYOUTS, MAKES, TRANSFORMS, Seen
from torch import nn

import sparkdl
from sparkdl import Dataset, Trainer, session
from sparkdl.exceptions import SparkdlError
from sparkdl.train import Checkpoint, EveryIterations, Hook, MaxIteration, TrainConfig

NAMES: Mapping[str, Mapping[str, str]] = {
    "new": {
        "auto": "auto",
        "driver": "driver",
        "sharded": "sharded",
        "replicated": "replicated",
        "replicated-rows": "replicated",
    },
    "old": {
        "auto": "auto",
        "driver": "slices",
        "sharded": "gather",
        "replicated": "replicas",
        "replicated-rows": "rows",
    },
}
"""The option ``exchange`` for each plan."""

SHARDS = {"new": "num_shards", "old": "num_slices"}
"""The option for the number of shards, which names of cases call slices as the first recordings did."""

PACKAGE = Path(sparkdl.__file__).parents[1]
CHECKPOINT_EVERY = 7  # in the middle of an epoch, and of a group
_COMPARED = ("weights", "unaveraged", "losses", "steps", "scores", "seen", "error")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Record the bits that training ends with.")
    parser.add_argument("--json", type=Path, help="where to write; what is there already is replaced by name")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="an earlier recording")
    parser.add_argument("--only", metavar="PATTERN", help="cases whose names match, as file names do")
    parser.add_argument(
        "--go-on", action="store_true", help="leave out what --json holds already and ended well"
    )
    parser.add_argument("--names", choices=tuple(NAMES), default="new", help="of the exchanges (new)")
    parser.add_argument(
        "--transport",
        choices=("shuffle", "direct"),
        default="shuffle",
        help="of groups (shuffle); direct runs in more task slots, one for each partition",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases and end")
    return parser.parse_args()


# -- one case --------------------------------------------------------------------------------------


def trainer(case: Case, names: str, hooks: Iterable[Hook], iterations: int = ITERATIONS) -> Trainer:
    """Make the Trainer of a case."""
    config = TrainConfig(hooks=list(hooks), end_when=MaxIteration(iterations))
    return Trainer(case.module(), config=config, **options_of(case, names))


def options_of(case: Case, names: str) -> dict[str, Any]:
    """Return the options of a case's Trainer."""
    common = {"exchange": NAMES[names][case.plan], "batch_size": BATCH, "seed": 3, "progress": False}
    return common | {SHARDS[names] if name == "num_shards" else name: v for name, v in case.options.items()}


def record(case: Case, names: str, data: Dataset, validation: Dataset) -> dict[str, Any]:
    """Train a case and return its digests."""
    hooks, sets = case.hooks(), validation if case.validation else None
    try:
        if case.resume_at is None:
            result: Any = trainer(case, names, hooks).fit(data, sets)
        else:
            with tempfile.TemporaryDirectory(prefix="sparkdl-characterise-") as folder:
                hooks.append(Checkpoint(folder, EveryIterations(CHECKPOINT_EVERY)))
                trainer(case, names, hooks, case.resume_at).fit(data, sets)
                result = trainer(case, names, hooks).fit(data, sets, resume=True)
        found: dict[str, Any] = {}
        if result.stopped_by == "interrupt":  # fit() ends in peace, with the bits of a shorter run
            raise KeyboardInterrupt
    except SparkdlError as error:
        found, result = {"error": type(error).__name__}, getattr(error, "result", None)
        if not case.fails:
            print(f"{case.name}: {error}", file=sys.stderr)
        if result is None:
            return found
    rows = result.history
    found["weights"] = digest_of(result.module)
    if result.unaveraged is not None:
        found["unaveraged"] = digest_of(result.unaveraged)
    found["losses"] = digest(np.array(rows.column("loss"), np.float64).tobytes())
    steps = [(row["epoch"], row["iteration"], row["samples"], row["lr"], row["lost"]) for row in rows]
    found["steps"] = digest(repr(steps).encode())
    if case.validation:
        found["scores"] = digest(repr(rows.validations).encode())
    for hook in hooks:
        if isinstance(hook, Seen):
            found["seen"] = hook.digest.hexdigest()
    found["last_loss"] = rows.column("loss")[-1]  # for people; not compared
    return found


def digest_of(module: nn.Module) -> str:
    """Return the sha256 of all parameters, buffers and counters, with their names and kinds."""
    found = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        array = tensor.detach().cpu().contiguous().numpy()
        found.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return found.hexdigest()


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# -- all of them -----------------------------------------------------------------------------------


class Datasets:
    """The rows in their partitions, each kept for all cases that need it."""

    def __init__(self, spark: Any, stack: ExitStack) -> None:
        self._spark, self._stack = spark, stack
        self._made: dict[tuple[str, str], Dataset] = {}

    def get(self, kind: str, layout: str) -> Dataset:
        """Return rows of a kind, laid out as wanted, however unevenly."""
        if (kind, layout) not in self._made:
            rows, sizes = MAKES[kind](), LAYOUTS[layout]
            ends = list(accumulate(sizes))
            parts = [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            rdd = self._spark.sparkContext.parallelize(range(len(parts)), len(parts)).flatMap(
                parts.__getitem__
            )
            data = Dataset.from_rdd(
                rdd, num_partitions="input", has_weight=kind == "weighted", transform=TRANSFORMS.get(kind)
            )
            self._made[kind, layout] = self._stack.enter_context(data)
        return self._made[kind, layout]


def start(transport: str) -> Any:
    """Start Spark, whose workers import this very package."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(PACKAGE), str(Path(__file__).resolve().parent)])
    # A JVM of some minutes does nothing but compile unless it is told to compile little.
    os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.log.level": "ERROR"}
    conf["spark.sparkdl.transport"] = transport  # other trees do not know it, and need not
    master = "local[2]" if transport == "shuffle" else "local[8]"
    spark = session.builder(master, "characterise", conf).getOrCreate()
    (there,) = spark.sparkContext.parallelize([0], 1).map(_where).collect()
    if there != sparkdl.__file__:
        spark.stop()
        raise SystemExit(f"the driver imports {sparkdl.__file__}, the workers {there}")
    return spark


def _where(_: int) -> str:
    import sparkdl

    return str(sparkdl.__file__)


def about(names: str) -> dict[str, Any]:
    """Return what bits depend on, and what tells recordings apart."""
    import pyspark

    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pyspark": pyspark.__version__,
        "python": platform.python_version(),
        "processor": torch.backends.cpu.get_cpu_capability(),
        "iterations": ITERATIONS,
        "names": names,
    }


def run(
    cases: list[Case], names: str, kept: dict[str, Any], path: Path | None, transport: str
) -> dict[str, Any]:
    """Train all cases; write after each."""
    torch.set_num_threads(1)  # of the driver; a task's follow from partitions and cores
    found: dict[str, Any] = {"about": about(names), "cases": kept}
    with ExitStack() as stack:
        spark = start(transport)
        stack.callback(spark.stop)
        datasets = Datasets(spark, stack)
        x, y = (np.stack(column) for column in zip(*MAKES["classes"]()[::3], strict=True))
        validation = stack.enter_context(Dataset.from_numpy(x, y, spark=spark, num_partitions=2))
        for number, case in enumerate(cases, 1):
            data = datasets.get(case.rows, case.layout)
            data.store()
            begin = time.perf_counter()
            one = record(case, names, data, validation)
            one["seconds"] = round(time.perf_counter() - begin, 2)
            found["cases"][case.name] = one
            keeping.write(path, found)
            said = one.get("error") or one["weights"][:12]
            print(f"{number}/{len(cases)} {case.name}: {said}, {one['seconds']} s", file=sys.stderr)
    return found


def ended_well(case: Case, cases: Mapping[str, Any]) -> bool:
    """Return whether a case is recorded, and ended as it should."""
    return case.name in cases and ("error" in cases[case.name]) == case.fails


# -- comparing -------------------------------------------------------------------------------------


def differences(before: Mapping[str, Any], after: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """Return by case in what two recordings differ.

    Args:
        before: cases of a recording.
        after: cases of another.
        names: the cases to compare.
    """
    found = {}
    for name in names:
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found[name] = "not recorded " + ("before" if old is None else "now")
        elif others := [key for key in _COMPARED if old.get(key) != new.get(key)]:
            found[name] = ", ".join(others)
    return found


def compare(path: Path, found: Mapping[str, Any], names: Iterable[str]) -> int:
    """Print in which cases a recording differs from an earlier one; return how many."""
    before, names = json.loads(path.read_text()), list(names)
    for key, value in found["about"].items():
        if key != "names" and before["about"].get(key) != value:
            print(f"caution: {key} is {value}, was {before['about'].get(key)}")
    different = differences(before["cases"], found["cases"], names)
    for name, what in different.items():
        print(f"{name}: {what}")
    print(f"{len(names) - len(different)} of {len(names)} cases are equal to the bit")
    return len(different)


def main() -> int:
    args = arguments()
    cases = [case for case in matrix() if args.only is None or fnmatchcase(case.name, args.only)]
    if not cases:
        raise SystemExit(f"--only {args.only}: no such case; --list prints them")
    if args.list:
        print("\n".join(case.name for case in cases))
        return 0
    kept = json.loads(args.json.read_text())["cases"] if args.json is not None and args.json.exists() else {}
    due = [case for case in cases if not (args.go_on and ended_well(case, kept))]
    found = run(due, args.names, kept, args.json, args.transport)
    failed = [case.name for case in due if not ended_well(case, found["cases"])]
    if failed:
        print("ended otherwise than they should: " + ", ".join(failed))
    different = compare(args.compare, found, [case.name for case in cases]) if args.compare else 0
    return 1 if failed or different else 0


if __name__ == "__main__":
    sys.exit(main())
