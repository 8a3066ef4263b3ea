"""Train what public databases hold with sparkdl and with plain torch, and compare.

    python benchmarks/compatibility.py --json compatibility.json --page docs/compatibility.md

It needs no JVM: jobs run in this process, as in the tests. ``--family`` and ``--only`` choose entries;
``--go-on`` keeps those that the file has already.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

import keeping  # noqa: E402
import torch  # noqa: E402
from compat import compare, hugging_face, metrics, torch_own, vision  # noqa: E402
from compat.page import page  # noqa: E402
from support.no_jvm import no_jvm  # noqa: E402

FAMILIES = {
    "modules": torch_own.modules,
    "optimizers": torch_own.optimizers,
    "transformers": hugging_face.architectures,
    "lora": hugging_face.adapted,
    "torchvision": vision.models,
    "metrics": metrics.metrics,
}


def entries(family: str = "*", only: str = "*") -> Iterator[Any]:
    """Return the entries of families whose names match."""
    for name, found in FAMILIES.items():
        if fnmatchcase(name, family):
            yield from (entry for entry in found() if fnmatchcase(entry.name, only))


def unreached(kept: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, by family, the names of entries without an outcome."""
    found: dict[str, list[str]] = {}
    for entry in entries():
        if f"{entry.family}: {entry.name}" not in kept:
            found.setdefault(entry.family, []).append(entry.name)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--family", default="*", help="pattern of families: " + ", ".join(FAMILIES))
    parser.add_argument("--only", default="*", help="pattern of names")
    parser.add_argument("--json", type=Path, help="file of all outcomes")
    parser.add_argument("--go-on", action="store_true", help="keep outcomes that the file has")
    parser.add_argument("--page", type=Path, help="write the table")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kept = json.loads(args.json.read_text()) if args.json is not None and args.json.exists() else {}
    saved = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, no_jvm(folder, "local[1]") as spark:
        for entry in entries(args.family, args.only):
            key = f"{entry.family}: {entry.name}"
            if args.go_on and key in kept:
                continue
            begin = time.perf_counter()
            outcome = entry.run(spark) if hasattr(entry, "run") else compare.run(spark, entry)
            kept[key] = {"family": entry.family, "name": entry.name, **asdict(outcome)}
            kept[key]["torch"] = torch.__version__
            if outcome.verdict != "equal":
                print(f"{entry.name}: {outcome.verdict}: {outcome.reason}", flush=True)
            kept[key]["seconds"] = round(time.perf_counter() - begin, 2)
            if args.json is not None and time.perf_counter() - saved > 5:
                keeping.write(args.json, kept)
                saved = time.perf_counter()
    keeping.write(args.json, kept)
    if args.page is not None:
        args.page.write_text(page(kept, unreached(kept)))
    counts: dict[str, int] = {}
    for one in kept.values():
        counts[one["verdict"]] = counts.get(one["verdict"], 0) + 1
    print(counts)
    return 1 if counts.get("different") else 0


if __name__ == "__main__":
    sys.exit(main())
