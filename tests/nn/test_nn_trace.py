import pytest
import torch
from torch import nn

from sparkdl.nn.batch import call
from sparkdl.nn.trace import describe, explain_failure


def explain(module, inputs):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - any error of the module
        call(module, inputs)
    return str(explain_failure(module, inputs, call, caught.value))


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x, scale=None):
        return self.inner(x).view(7)


FAILURES = {
    "linear": (
        nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 1)),
        torch.zeros(2, 3),
        (
            "layer '2', Linear(in_features=5",
            "got input float32[2, 4]",
            "expected float[..., 5]",
            "RuntimeError",
        ),
    ),
    "nested": (
        nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3))),
        torch.zeros(2, 3, 5, 5),
        ("layer '0.0', Conv2d(1, 2", "got input float32[2, 3, 5, 5]", "expected float[rows, 1, *, *]"),
    ),
    "conv1d": (nn.Sequential(nn.Conv1d(4, 2, 3)), torch.zeros(2, 3, 5), ("expected float[rows, 4, *]",)),
    "dtype": (nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2, dtype=torch.int64), ("int64[1, 2]",)),
    "embedding": (
        nn.Sequential(nn.Embedding(3, 2)),
        torch.tensor([3]),
        ("layer '0', Embedding(3, 2)", "expected integers from 0 to 2", "IndexError"),
    ),
    "embedding of doubles": (
        nn.Sequential(nn.Embedding(3, 2)),
        torch.tensor([1.0]),
        ("got float32[1], expected integers from 0 to 2", "Column(name, dtype='int64')", "inputTypes"),
    ),
    "batch norm": (
        nn.Sequential(nn.BatchNorm1d(3)),
        torch.zeros(1, 3),
        ("layer '0', BatchNorm1d", "float[rows, 3, ...], more than one value per channel"),
    ),
    "own code": (Own(), torch.zeros(2, 3), ("module Own: got input float32[2, 3]: RuntimeError",)),
    "keywords": (
        Own(),
        {"x": torch.zeros(2, 3), "scale": torch.zeros(2)},
        ("module Own: got input {x: float32[2, 3], scale: float32[2]}",),
    ),
    "wrong arguments": (Own(), (torch.zeros(1),) * 3, ("module Own: got input (float32[1],", "TypeError")),
}


@pytest.mark.parametrize(("module", "inputs", "fragments"), FAILURES.values(), ids=FAILURES)
def test_the_failing_layer_is_named(module, inputs, fragments):
    message = explain(module, inputs)
    for fragment in fragments:
        assert fragment in message


def test_a_shared_layer_is_named_once():
    layer = nn.Linear(2, 2)
    message = explain(nn.Sequential(layer, nn.Linear(2, 3), layer), torch.zeros(1, 2))
    assert "layer '0'" in message
    assert "got input float32[1, 3]" in message


def test_tracing_leaves_no_hooks_and_draws_no_random_numbers():
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    state = torch.get_rng_state()
    explain_failure(module, torch.zeros(1, 3), call, RuntimeError("x"))
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in module.modules())


def test_when_the_module_runs_the_loss_is_to_blame():
    message = str(explain_failure(nn.Linear(2, 2), torch.zeros(1, 2), call, ValueError("why")))
    assert message.startswith("the loss failed: ValueError: why. The module ran on inputs float32[1, 2]")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(()), "float32[]"),
        ((torch.zeros(2),), "float32[2]"),
        ([torch.zeros(1, dtype=torch.bool), 3], "(bool[1], int)"),
        ({"a": (torch.zeros(1), None)}, "{a: (float32[1], NoneType)}"),
    ],
)
def test_describe(value, text):
    assert describe(value) == text


def test_what_fails_if_no_layer_does_can_be_named():
    error = explain_failure(
        nn.Linear(2, 2), torch.zeros(1, 2), call, KeyError("x"), ("the step", "Look there")
    )
    assert error.args[0] == "the step failed: KeyError: 'x'. Look there"
