"""MKL's vector functions, bound before several threads call them."""

import os

import pytest
import torch

from sparkdl.nn import vector_math

COMPUTING = [
    "compute.worker",
    "ml.stages.shipped",
    "ml.stages.scoring",
    "ml.estimators.model",
    "distill.soft_labels",
    "mlflow.pyfunc",
    "serve.predictor",
    "serve.served",
    "serve.server.versions",
    "online.trainer",
]
"""Where modules run."""

PROCESSES, AT_ONCE, THREADS = 300, 12, 4


def test_whatever_runs_modules_has_bound_the_functions():
    graph = pytest.importorskip("grimp").build_graph("sparkdl", cache_dir=None)
    for name in COMPUTING:
        assert graph.chain_exists(f"sparkdl.{name}", "sparkdl.nn.vector_math"), name


def test_binding_starts_no_thread_for_a_fork_would_lose_it():
    before = len(os.listdir("/proc/self/task"))
    vector_math.bind()
    assert len(os.listdir("/proc/self/task")) == before


@pytest.mark.slow
def test_first_square_roots_of_threads_are_as_precise_as_later_ones():
    values, threads = torch.rand(40_000), torch.get_num_threads()
    torch.set_num_threads(1)  # a process with threads of OpenMP cannot be forked
    try:
        assert all(_first_are_right(values) for _ in range(PROCESSES))
    finally:
        torch.set_num_threads(threads)


def _first_are_right(values: torch.Tensor) -> bool:
    children = []
    for _ in range(AT_ONCE):
        child = os.fork()
        if child == 0:
            torch.set_num_threads(THREADS)
            os._exit(0 if torch.equal(values.sqrt(), values.sqrt()) else 1)
        children.append(child)
    return not any(os.waitpid(child, 0)[1] for child in children)
