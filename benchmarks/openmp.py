"""Does Intel's OpenMP runtime make torch training steps faster than the one torch ships?

Runs plain torch training steps in fresh processes: with libgomp, which the torch wheel brings, and
with libiomp5 preloaded (the ``mkl`` package brings it) under several settings. The variants take
turns, so that a busy machine slows all of them alike. Prints one JSON line per case::

    python benchmarks/openmp.py --rounds 3

``ms`` is the median over the turns of each turn's median step, ``quiet_ms`` the fastest 5 % of all
steps: what a step takes when nothing else wants the cores. ``speedup`` and ``quiet_speedup`` divide
libgomp's time by the variant's: above 1, the variant helps. ``--processes 2`` runs two processes
side by side, as two executors on one machine do.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

AFFINITY = "granularity=fine,compact,1,0"
VARIANTS: dict[str, dict[str, str]] = {
    "libgomp": {},
    "libgomp passive": {"OMP_WAIT_POLICY": "passive"},
    "libiomp5": {"preload": "yes"},
    "libiomp5 blocktime=0": {"preload": "yes", "KMP_BLOCKTIME": "0"},
    "libiomp5 blocktime=1": {"preload": "yes", "KMP_BLOCKTIME": "1"},
    "libiomp5 affinity blocktime=1": {"preload": "yes", "KMP_AFFINITY": AFFINITY, "KMP_BLOCKTIME": "1"},
}
CASES = ("lenet_b512", "mlp_b128", "ncf_b2048")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of each variant (3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per case and turn (1)")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="torch threads (1 2)")
    parser.add_argument("--processes", type=int, default=1, help="processes at a time (1)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.threads[0], args.seconds)
        return
    library = Path(sysconfig.get_path("data"), "lib", "libiomp5.so")
    if not library.exists():
        sys.exit(f"{library} not found: pip install mkl (x86-64 Linux only)")
    for threads in args.threads:
        turns: dict[tuple[str, str], list[list[float]]] = defaultdict(list)
        for _ in range(args.rounds):
            for variant in VARIANTS:
                for case, steps in measure(variant, library, threads, args.seconds, args.processes):
                    turns[case, variant].append(steps)
        for case in CASES:
            base, quiet_base = summary(turns[case, "libgomp"])
            for variant in VARIANTS:
                ms, quiet = summary(turns[case, variant])
                row = {
                    "case": case,
                    "threads": threads,
                    "processes": args.processes,
                    "variant": variant,
                    "ms": round(ms, 3),
                    "quiet_ms": round(quiet, 3),
                    "speedup": round(base / ms, 2),
                    "quiet_speedup": round(quiet_base / quiet, 2),
                    "turns": [round(statistics.median(steps), 2) for steps in turns[case, variant]],
                }
                print(json.dumps(row), flush=True)


def summary(turns: list[list[float]]) -> tuple[float, float]:
    """Return the median of the turns' medians, and the 5 % quantile of all steps."""
    together = sorted(step for steps in turns for step in steps)
    return statistics.median(map(statistics.median, turns)), together[len(together) // 20]


def measure(
    variant: str, library: Path, threads: int, seconds: float, processes: int
) -> list[tuple[str, list[float]]]:
    """Run a variant in fresh processes; returns (case, milliseconds of each step) of each."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("KMP_", "OMP_", "GOMP_", "LD_PRELOAD"))}
    chosen = dict(VARIANTS[variant])
    if chosen.pop("preload", None):
        env["LD_PRELOAD"] = str(library)
    env |= chosen | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, "--worker", "--threads", str(threads), "--seconds", str(seconds)]
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) for _ in range(processes)
    ]
    found: list[tuple[str, list[float]]] = []
    for process in running:
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(f"{variant}: a worker ended with {process.returncode}")
        answer = json.loads(output.splitlines()[-1])
        wanted = "libiomp5" if "LD_PRELOAD" in env else "libgomp"
        if wanted not in answer["runtime"]:
            sys.exit(f"{variant}: torch runs on {answer['runtime']}, expected {wanted}")
        found += answer["ms"].items()
    return found


def worker(threads: int, seconds: float) -> None:
    """Measure all cases in this process and print them as one JSON line."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    answer = {case: time_steps(step_of(case), seconds) for case in CASES}
    print(json.dumps({"runtime": openmp_library(), "ms": answer}))


def openmp_library() -> str:
    """Return the library whose parallel regions torch enters."""
    import ctypes

    address = ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[-1]
    return "unknown"


def step_of(case: str) -> Callable[[], None]:
    """Return one training step of a case."""
    import torch
    from torch import nn

    from sparkdl.nn import LeNet5, NeuralCF

    module: nn.Module
    loss: nn.Module = nn.CrossEntropyLoss()
    inputs: tuple[torch.Tensor, ...]
    if case == "lenet_b512":
        module, inputs, label = LeNet5(), (torch.randn(512, 784),), torch.randint(10, (512,))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    elif case == "mlp_b128":
        sizes = (nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
        module, inputs, label = nn.Sequential(*sizes), (torch.randn(128, 784),), torch.randint(10, (128,))
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    else:
        module, loss = NeuralCF(6040, 3706), nn.BCEWithLogitsLoss()
        inputs = (torch.randint(6040, (2048,)), torch.randint(3706, (2048,)))
        label = torch.randint(2, (2048,)).float()
        optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(module(*inputs), label).backward()
        optimizer.step()

    return step


def time_steps(step: Callable[[], None], seconds: float) -> list[float]:
    """Return the milliseconds of each step, after warming up."""
    for _ in range(5):
        step()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 10:
        begin = time.perf_counter()
        step()
        times.append(1e3 * (time.perf_counter() - begin))
    return times


if __name__ == "__main__":
    main()
