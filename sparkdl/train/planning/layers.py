"""Forward and backward by layer, as torch's profiler sees them in a task."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from sparkdl._spark.tasks import task_resources
from sparkdl.compute.forward_backward import make_batch
from sparkdl.compute.worker import FitRef
from sparkdl.data.sampler import in_order
from sparkdl.data.store.partition import Token
from sparkdl.nn.batch import Batch
from sparkdl.nn.flat import FlatModule
from sparkdl.nn.gradient import forward_backward
from sparkdl.nn.numerics import Replica, device_of_task
from sparkdl.nn.objective import Objective
from sparkdl.wire import frame
from sparkdl.wire.frame import Buffer, Parts

_MARK = "layer: "
_BACKWARD = "autograd::engine::evaluate_function: "
OTHER = "loss and the rest"
_WARM, _REPEATS = 2, 3


@dataclass(frozen=True, slots=True)
class LayerTime:
    """A layer's seconds in one step."""

    name: str  # of the module, as in ``named_modules()``
    kind: str  # its class
    parameters: int  # how many it has
    forward: float  # seconds
    backward: float  # seconds


@dataclass(frozen=True, slots=True)
class LayerSpan:
    """What the profiler saw of a layer: for a trace."""

    name: str  # of the layer, with the direction
    start: float  # seconds since the first one
    seconds: float  # how long
    backward: bool  # whether it belongs to the backward pass


def profile_first_rows(fit: FitRef, rows: int, _: int, frames: Iterator[Buffer]) -> Iterator[bytes | Parts]:
    """Train on a partition's first rows, and yield layers and spans as the profiler saw them."""
    token = Token.from_frame(frame.unpack(next(frames)))
    deque(frames, maxlen=0)
    worker = fit.worker()
    spec = worker.spec
    columns = in_order(token, size=rows).read()
    batch = make_batch(columns, spec.features, spec.label, spec.weighted, spec.transform, spec.collate)
    # What is compiled has no layers any more.
    numerics = replace(spec.numerics, compile=False)
    device = device_of_task(task_resources())
    replica = Replica(spec.module.train(), spec.layout, numerics, device)
    layers, spans = profile_layers(replica, batch, spec.objective, spec.micro_batch_size)
    yield frame.pack({"layers": [asdict(x) for x in layers], "spans": [asdict(x) for x in spans]})


def profile_layers(
    replica: FlatModule, batch: Batch, objective: Objective, micro_batch_size: int | None
) -> tuple[list[LayerTime], list[LayerSpan]]:
    """Return each layer's seconds in a step, and the spans of one step."""
    for _ in range(_WARM):
        forward_backward(replica, batch, objective, micro_batch_size)
    with _marked(replica.module), profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(_REPEATS):
            forward_backward(replica, batch, objective, micro_batch_size)
    modules = dict(replica.module.named_modules())
    spans = _spans(seen.events())
    forward, backward = dict[str, float](), dict[str, float]()
    for span in spans:
        into = backward if span.backward else forward
        into[span.name] = into.get(span.name, 0.0) + span.seconds / _REPEATS
    names = dict.fromkeys([*forward, *backward])
    layers = [
        LayerTime(
            name,
            type(modules[name]).__name__ if name in modules else "",
            sum(p.numel() for p in modules[name].parameters()) if name in modules else 0,
            forward.get(name, 0.0),
            backward.get(name, 0.0),
        )
        for name in names
    ]
    layers.sort(key=lambda layer: -(layer.forward + layer.backward))
    starts = [span.start for span in spans if not span.backward]
    last = starts[len(starts) // _REPEATS * (_REPEATS - 1)] if starts else 0.0  # the first steps take longer
    return layers, [replace(span, start=span.start - last) for span in spans if span.start >= last][:2000]


@contextmanager
def _marked(module: nn.Module) -> Iterator[None]:
    """Let forward passes of layers without children be named in the profile while the block runs."""
    open_: list[record_function] = []

    def enter(name: str) -> Any:
        def hook(*_: Any) -> None:
            open_.append(record_function(f"{_MARK}{name}"))
            open_[-1].__enter__()  # type: ignore[no-untyped-call]

        return hook

    def leave(*_: Any) -> None:
        if open_:
            open_.pop().__exit__(None, None, None)

    with ExitStack() as stack:
        for name, layer in module.named_modules():
            if not any(True for _ in layer.children()):
                shown = name or type(layer).__name__
                for handle in (
                    layer.register_forward_pre_hook(enter(shown)),
                    layer.register_forward_hook(leave, always_call=True),
                ):
                    stack.callback(handle.remove)
        yield


def _spans(events: Sequence[Any] | None) -> list[LayerSpan]:
    """Return the spans of layers; operators of the backward pass belong to the layer that has made them.

    Torch numbers the operators of a forward pass, and their derivatives have the same numbers.
    """
    found: list[LayerSpan] = []
    layer_of: dict[int, str] = {}
    events = sorted(events or (), key=lambda event: event.time_range.start)
    begin = events[0].time_range.start if events else 0

    def add(name: str, event: Any, backward: bool) -> None:
        span = event.time_range
        found.append(LayerSpan(name, (span.start - begin) / 1e6, (span.end - span.start) / 1e6, backward))

    for event in events:
        if event.name.startswith(_MARK):
            add(event.name.removeprefix(_MARK), event, False)
        elif event.name.startswith(_BACKWARD):
            add(layer_of.get(event.sequence_nr, OTHER), event, True)
        elif event.sequence_nr >= 0:
            above = event.cpu_parent
            while above is not None and not above.name.startswith(_MARK):
                above = above.cpu_parent
            if above is not None:
                layer_of[event.sequence_nr] = above.name.removeprefix(_MARK)
            elif event.cpu_parent is None:
                add(OTHER, event, False)
    return found
