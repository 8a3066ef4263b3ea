import threading
from functools import partial

import pytest
import torch
from torch import nn

from sparkdl.exceptions import SerializationError
from sparkdl.nn.serialize import dumps, loads


class Holder:
    def __init__(self, value):
        self.value = value

    def method(self):
        return self.value


class Net(nn.Module):
    def __init__(self, value=None):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(2, 2))
        self.block[0].extra = value

    def forward(self, x):
        return self.block(x)


def closure_over(value):
    return lambda: value


def cyclic(value):
    holder = Holder({"deep": [0, value]})
    holder.me = holder
    return holder


def test_objects_that_no_executor_can_import_travel_by_value():
    factor = 3

    class Local(nn.Module):
        def forward(self, x):
            return x * factor

    assert loads(dumps(Local(), "module"))(torch.ones(1)).item() == 3
    assert loads(dumps(lambda x: x + factor, "loss"))(1) == 4


def test_a_module_round_trips_with_its_weights():
    module = Net()
    copy = loads(dumps(module, "module"))
    assert torch.equal(copy(torch.ones(1, 2)), module(torch.ones(1, 2)))


CULPRITS = {
    "itself": (lambda lock: lock, "thing is a lock"),
    "attribute": (Holder, "thing.value is a lock"),
    "deep": (lambda lock: Holder({"a": [1, (lock,)]}), r"thing.value\['a'\]\[1\]\[0\] is a lock"),
    "layer": (Net, r"thing.block.0.extra is a lock"),
    "closure": (closure_over, "thing.<closure>.value is a lock"),
    "closure of module": (
        lambda lock: closure_over(Net(lock)),
        "thing.<closure>.value.block.0.extra is a lock",
    ),
    "cycle": (cyclic, r"thing.value\['deep'\]\[1\] is a lock"),
    "partial": pytest.param(
        lambda lock: partial(print, lock),
        r"thing.args\[0\] is a lock",
    ),
    "method": pytest.param(
        lambda lock: Holder(lock).method,
        "thing.__self__.value is a lock",
    ),
}


@pytest.mark.parametrize(
    ("make", "message"),
    [c if not isinstance(c, tuple) or hasattr(c, "marks") else pytest.param(*c) for c in CULPRITS.values()],
    ids=CULPRITS,
)
def test_the_culprit_is_named(make, message):
    with pytest.raises(
        SerializationError, match=f"^thing cannot be shipped to the executors: {message}"
    ) as e:
        dumps(make(threading.Lock()), "thing")
    assert "__getstate__" in str(e.value)
    assert isinstance(e.value.__cause__, TypeError)
