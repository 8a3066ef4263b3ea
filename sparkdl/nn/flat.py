"""A module whose trainable parameters, gradients and buffers lie in flat vectors.

Loading weights into the module is one copy, and its gradient is one vector without a gather: the
module's parameters and their ``.grad`` are views into the vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sparkdl.exceptions import ModelError
from sparkdl.nn.batch import Batch
from sparkdl.nn.module_buffers import BufferVector, SparseBuffers, carried
from sparkdl.nn.parameters import layout_of, tables_of, trainable
from sparkdl.wire.frame import Array
from sparkdl.wire.layout import ParamLayout, TensorPlace

T = TypeVar("T")

FlatWeights = Array | Sequence[Array] | torch.Tensor
"""What a module loads: a flat vector on the host, whole or in shards, or a tensor on any device."""


class FlatModule:
    """A module together with its flat vectors.

    The module is moved to ``device``, such as ``"cuda:0"``, and its parameters become views of ``params``,
    shape (layout.numel,), in the places of ``layout``; ``backward`` accumulates into ``grad``, of the same
    shape. ``holds`` is the version of the weights in ``params``: set by who writes them there, cleared when
    others are loaded.
    """

    def __init__(
        self, module: nn.Module, layout: ParamLayout | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self.device = torch.device(device)
        self.module = module.to(self.device)
        self.layout = layout or layout_of(module)
        dtype = getattr(torch, self.layout.dtype)
        self._tensors = [p for _, p in trainable(module)]
        self.params = torch.empty(self.layout.numel, dtype=dtype, device=self.device)
        self.grad = torch.zeros(self.layout.numel, dtype=dtype, device=self.device)
        self._grads: list[torch.Tensor] = []
        self.holds: object = None
        for spec, p in zip(self.layout.params, self._tensors, strict=True):
            view = self.params[spec.offset : spec.end].view(spec.shape)
            view.copy_(p.detach())
            p.data = view
            # Through .data each gradient counts its own versions: how `used` tells that backward
            # wrote to it. A hook on each parameter would cost as much as a small layer's backward.
            gradient = self.grad[spec.offset : spec.end].view(spec.shape).data
            p.grad = gradient
            self._grads.append(gradient)
        self._versions = [gradient._version for gradient in self._grads]
        self._hooked = [
            index for index, p in enumerate(self._tensors) if getattr(p, "_post_accumulate_grad_hooks", None)
        ]
        self._staged = self.params
        if self.device.type != "cpu":
            self._staged = torch.empty(self.layout.numel, dtype=dtype, pin_memory=True)
        self._frozen = np.zeros(len(self._tensors), np.bool_)
        own = {id(p) for p in self._tensors}
        self._untrained = [(name, p) for name, p in module.named_parameters() if id(p) not in own]
        self._lent = False
        self._touched: dict[int, NDArray[np.bool_]] = {}
        self._dense: set[int] = set()
        self._watch_sparse()
        named = carried(module, [spec.name for spec in (*self.layout.buffers, *self.layout.counters)])
        doubles = any(named[spec.name].dtype == torch.float64 for spec in self.layout.buffers)
        self._buffers = BufferVector(
            module, self.layout.buffers, torch.float64 if doubles else dtype, self.device
        )
        self._counters = BufferVector(module, self.layout.counters, torch.int64, self.device)
        self._sparse = SparseBuffers(module)

    def _watch_sparse(self) -> None:
        """Record the rows of sparse gradients; only embeddings built for them are watched."""
        for index in tables_of(self.module, sparse=True):
            weight = self._tensors[index]
            weight.register_hook(self._watcher(index, len(weight)))  # type: ignore[no-untyped-call]

    def _watcher(self, index: int, rows: int) -> Callable[[torch.Tensor], None]:
        def watch(gradient: torch.Tensor) -> None:
            if gradient.is_sparse:
                touched = self._touched.setdefault(index, np.zeros(rows, np.bool_))
                touched[gradient._indices()[0].cpu().numpy()] = True
            else:  # tied to a layer with a dense gradient
                self._dense.add(index)

        return watch

    @property
    def used(self) -> NDArray[np.bool_]:
        """Per parameter of the layout, whether the last backward passes reached it."""
        now = [gradient._version for gradient in self._grads]
        return np.array([a != b for a, b in zip(now, self._versions, strict=True)], np.bool_)

    @property
    def touched(self) -> dict[int, NDArray[np.bool_]]:
        """Rows with a gradient, by index of those parameters whose gradient arrived sparse.

        Of parameters of the layout that belong to ``nn.Embedding(sparse=True)`` or
        ``nn.EmbeddingBag(sparse=True)``; all other rows of their gradient are zero.
        """
        return {index: rows for index, rows in self._touched.items() if index not in self._dense}

    def zero_grad(self) -> None:
        """Clear gradients, and the record of the parameters that backward reached."""
        if self._lent:
            self.grad.zero_()
            self._lent = False
        else:
            self._zero_what_backward_wrote()
        self._versions = [gradient._version for gradient in self._grads]
        self._touched.clear()
        self._dense.clear()

    def _zero_what_backward_wrote(self) -> None:
        """Clear the rows of sparse gradients, and everything between the tables."""
        begin = 0
        for index, rows in sorted(self.touched.items()):
            spec = self.layout.params[index]
            self.grad[begin : spec.offset].zero_()
            self._grads[index].index_fill_(0, torch.from_numpy(np.flatnonzero(rows)).to(self.device), 0)
            begin = spec.end
        self.grad[begin:].zero_()

    def check_gradients(self) -> None:
        """Check that backward wrote into the flat vector alone, and forward into no sparse buffer."""
        self._sparse.check()
        for name, p in self._untrained:
            if p.requires_grad:
                p.requires_grad_(False)
                p.grad = None
                raise ModelError(
                    f"parameter {name!r} was frozen when the fit began, and the forward pass, or a hook of a "
                    "LightningModule, has called requires_grad_(True): no optimizer would train it. Give "
                    f"hooks=[Unfreeze({name!r}, at_epoch=...)] of sparkdl.train, or another pattern",
                    code="model-state",
                )
        for hooked in self._hooked:  # a hook after accumulation may replace the gradient
            gradient, own = self._tensors[hooked].grad, self._grads[hooked]
            if gradient is not own:
                if gradient is None:
                    own.zero_()
                else:
                    own.copy_(gradient)
                self._tensors[hooked].grad = own
        for index in np.flatnonzero(~self.used):
            if self._tensors[index].grad is not self._grads[index]:
                self._tensors[index].grad = self._grads[index]
                raise ModelError(
                    f"the .grad of parameter {self.layout.params[index].name!r} was replaced in the forward "
                    "pass: a step must not call zero_grad() or backward(); both are done for it",
                    code="model-gradient",
                )

    def set_frozen(self, frozen: NDArray[np.bool_] | Sequence[int]) -> None:
        """Choose the parameters that the next passes do not train; all others are trained.

        ``frozen`` has a bool per parameter of the layout, or the indices of those that are.
        """
        mask = np.asarray(frozen)
        if mask.dtype != np.bool_:
            mask = np.zeros(len(self._tensors), np.bool_)
            mask[list(frozen)] = True
        for index in np.flatnonzero(mask != self._frozen):
            self._tensors[index].requires_grad_(not mask[index])
        self._frozen = mask.copy()

    def frozen(self) -> list[str]:
        """Return the names of the parameters that are frozen now."""
        return [self.layout.params[index].name for index in np.flatnonzero(self._frozen)]

    def load(self, params: FlatWeights, buffers: Array, counters: Array) -> None:
        """Copy weights in, unless they are the module's own, and buffers; arrays may be read-only."""
        if params is not self.params:
            self.load_params(params)
        self.load_buffers(buffers, counters)

    def load_params(self, params: FlatWeights) -> None:
        """Copy weights in; the arrays may be read-only."""
        self.holds = None
        if isinstance(params, torch.Tensor):
            self.params.copy_(params)
            return
        of_shards = [params] if isinstance(params, np.ndarray) else params
        np.concatenate(of_shards, out=self._staged.numpy())
        if self._staged is not self.params:
            self.params.copy_(self._staged)

    def load_buffers(self, buffers: Array, counters: Array) -> None:
        """Copy buffers in; the arrays may be read-only."""
        self._buffers.load(buffers)
        self._counters.load(counters)

    def on_host(self, gradient: torch.Tensor) -> Array:
        """Return a gradient as an array, valid until the next ``load`` or ``zero_grad``."""
        if gradient.device.type == "cpu":
            return gradient.numpy()
        return self._staged.copy_(gradient).numpy()

    def lend_gradient(self) -> torch.Tensor:
        """Return the gradient to be overwritten, valid until the next ``zero_grad``."""
        self._lent = True
        return self.grad

    def buffers(self) -> Array:
        """Return a copy of the floating-point buffers as one vector."""
        return self._buffers.read()

    def counters(self) -> Array:
        """Return a copy of the integer and boolean buffers as one int64 vector."""
        return self._counters.read()

    @contextmanager
    def lending(self) -> Iterator[None]:
        """Load other weights for a while, then restore the values that live in this memory."""
        holds = self.holds
        if holds is None:
            yield
            return
        before = self.params.clone()
        try:
            yield
        finally:
            self.params.copy_(before)
            self.holds = holds

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation without gradients; each submodule gets its own mode back."""
        modes = [(layer, layer.training) for layer in self.module.modules()]
        training = self.module.training
        self.module.eval()
        try:
            # Not inference mode: what a module caches there could not be trained with later.
            with torch.no_grad():
                yield
        finally:
            self.module.train(training)  # modules may override it
            for layer, mode in modes:
                layer.training = mode

    # How forward_backward computes. With default options Replica in numerics.py does exactly this; others add
    # precision, compilation and the memory format there.

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the module wants it."""
        return batch.to(self.device)

    def computing(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass."""
        return nullcontext()

    @property
    def compiled(self) -> bool:
        """Whether the module's forward is compiled."""
        return False

    def attempt(self, work: Callable[[], T]) -> T:
        """Do the work of a pass."""
        return work()


def _scatter(tensors: Sequence[torch.Tensor], specs: Sequence[TensorPlace], flat: Array) -> None:
    for tensor, spec in zip(tensors, specs, strict=True):
        values = np.array(flat[spec.offset : spec.end])  # a copy: torch wants writable memory
        tensor.copy_(torch.from_numpy(values).view(spec.shape))


def write_back(
    module: nn.Module, layout: ParamLayout, params: Array, buffers: Array, counters: Array
) -> None:
    """Copy flat vectors into a module's own, separate parameters, frozen or not, and buffers."""
    named = carried(module, [spec.name for spec in (*layout.buffers, *layout.counters)])
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        _scatter([parameters[spec.name] for spec in layout.params], layout.params, params)
        _scatter([named[spec.name] for spec in layout.buffers], layout.buffers, buffers)
        _scatter([named[spec.name] for spec in layout.counters], layout.counters, counters)
