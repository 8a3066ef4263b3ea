"""Losses on hidden layers: what a student's layer gives, compared with a layer of a teacher."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sparkdl import seeding
from sparkdl.exceptions import ConfigError, ModelError
from sparkdl.nn.trace import describe

_PROJECTOR = "distill_projector"


class FeatureMatching(nn.Module):
    """The mean squared difference of hidden layers (FitNets: Romero et al., 2015).

    A row's loss is the mean over pairs of layers of ``mean((student @ P.T - teacher)²)``. Where widths
    differ, a :class:`Distiller` trains a projector ``P`` with the student, and leaves it out of the result.
    The width is the second dimension of images, (rows, channels, height, width), and the last one of all
    else. Of states of shape (rows, tokens, width) padding does not count, where a :class:`Distiller` has an
    input ``attention_mask`` of shape (rows, tokens), the student's or else the teacher's, by name. Without
    one it is not known what is padding, and all counts.

    Args:
        layers: the teacher's layer by the student's, both by their names in ``named_modules()``. If a layer
            gives a tuple, its first tensor counts.
        weight: factor of the loss.
        teacher: number of the teacher whose layers these are.

    Raises:
        ConfigError: if there are no layers, or ``weight`` is not positive.
    """

    def __init__(self, layers: Mapping[str, str], *, weight: float = 1.0, teacher: int = 0) -> None:
        super().__init__()
        if not isinstance(layers, Mapping) or not layers:
            raise ConfigError(
                f"layers={layers!r:.100}: expected a dict, {{student's layer: teacher's layer}}"
            )
        if not isinstance(weight, int | float) or not 0 < weight < float("inf"):
            raise ConfigError(f"weight={weight!r}: expected a positive number")
        self.layers = dict(layers)
        self.weight = float(weight)
        self.teacher = teacher

    def forward(
        self,
        student: Any,
        teacher: Any,
        projectors: Sequence[Tensor | None] = (),
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of each row, times ``weight``.

        Args:
            student: the output of a layer, or those of several.
            teacher: likewise, of the teacher.
            projectors: matrices of shape (teacher's width, student's width), or ``None``, by layer.
            mask: shape (rows, tokens), 0 for padding; ``None`` if all counts.
        """
        ours, theirs = ([one] if isinstance(one, Tensor) else list(one) for one in (student, teacher))
        matrices = list(projectors) or [None] * len(ours)
        found = [self.compared(*pair, mask) for pair in zip(ours, theirs, matrices, strict=True)]
        return self.weight * torch.stack(found).mean(0)

    def selected(self, hidden: Tensor) -> Tensor:
        """Return the part of a layer's output that is compared, its width last."""
        return hidden.movedim(1, -1) if hidden.dim() > 3 else hidden

    def compared(
        self, student: Tensor, teacher: Tensor, projector: Tensor | None, mask: Tensor | None = None
    ) -> Tensor:
        """Return the difference of one pair of layers, one value per row.

        Raises:
            ModelError: if shapes differ.
        """
        found, wanted = self.selected(student), self.selected(teacher)
        if projector is not None:
            found = found @ projector.T
        if found.shape != wanted.shape:
            raise ModelError(
                f"layers of the student and the teacher give {describe(student)} and {describe(teacher)}: "
                "expected one shape, apart from the width, for which a Distiller trains a projector",
                code="model-output",
            )
        wanted = wanted.to(found.dtype)
        if mask is None or found.dim() != 3 or found.shape[:2] != mask.shape:
            return self.difference(found, wanted)
        # Zeros do not differ: the mean over all tokens becomes that over those which count.
        padding = mask == 0
        found, wanted = (states.masked_fill(padding[..., None], 0) for states in (found, wanted))
        counts = (~padding).sum(1).clamp_min(1).to(found.dtype)
        return self.difference(found, wanted) * (mask.shape[1] / counts)

    def difference(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the mean squared difference of each row."""
        return (student - teacher).square().reshape(len(student), -1).mean(1)


class PatientKD(FeatureMatching):
    """Patient distillation of transformers (Sun et al., 2019), of hidden states that are normalised.

    A row's loss is the mean over pairs of layers of ``sum((s / |s| - t / |t|)²)`` with the hidden states s
    and t of one token; without ``token``, the mean over all tokens of that, without padding as of
    :class:`FeatureMatching`.

    Args:
        layers: the teacher's layer by the student's, as of :class:`FeatureMatching`; they give states of
            shape (rows, tokens, width), or (rows, width).
        weight: factor of the loss.
        teacher: number of the teacher whose layers these are.
        token: position whose states are compared, padding or not; the first one, [CLS], by default; ``None``
            for all.
    """

    def __init__(
        self, layers: Mapping[str, str], *, weight: float = 1.0, teacher: int = 0, token: int | None = 0
    ) -> None:
        super().__init__(layers, weight=weight, teacher=teacher)
        self.token = token

    def selected(self, hidden: Tensor) -> Tensor:
        """Return the states of the token."""
        return hidden if self.token is None or hidden.dim() < 3 else hidden[:, self.token]

    def difference(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Return the squared distance of normalised states."""
        ours, theirs = (nn.functional.normalize(states, dim=-1) for states in (student, teacher))
        return (ours - theirs).square().sum(-1).reshape(len(student), -1).mean(1)


@contextmanager
def captured(module: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """Collect what layers give while the block runs."""
    found: dict[str, Tensor] = {}
    handles = []
    for name in dict.fromkeys(names):

        def note(_: nn.Module, __: Any, output: Any, name: str = name) -> None:
            value = output[0] if isinstance(output, tuple | list) and output else output
            if not isinstance(value, Tensor):
                raise ModelError(
                    f"layer {name!r} gives {describe(output)}: expected a tensor, or a tuple that begins "
                    "with one",
                    code="model-output",
                )
            found[name] = value

        handles.append(module.get_submodule(name).register_forward_hook(note))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def check_layers(module: nn.Module, names: Sequence[str], whose: str) -> None:
    """Check that a module has layers of these names."""
    known = [name for name, _ in module.named_modules() if name]
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(str(name), known, 3, 0.3) or known[:5]
            raise ConfigError(
                f"{whose} has no layer {name!r}: expected a name in named_modules(), such as "
                f"{', '.join(close)}"
            )


def projector_name(loss: int, pair: int) -> str:
    """Return the name of the parameter that projects a layer of the student."""
    return f"{_PROJECTOR}_{loss}_{pair}"


def projectors_of(module: nn.Module, loss: int, pairs: int) -> list[Tensor | None]:
    """Return a student's projectors for the layers of a loss."""
    return [getattr(module, projector_name(loss, pair), None) for pair in range(pairs)]


def project(module: nn.Module, loss: int, pair: int, widths: tuple[int, int], seed: int) -> None:
    """Give a student a projector from its width to a teacher's.

    It is a parameter of the student itself, beside its layers, for their names stay, and a ``Sequential``
    calls all modules that it has.
    """
    ours, theirs = widths
    generator = torch.Generator().manual_seed(seeding.derive(seeding.PROJECTORS, seed, loss, pair) >> 1)
    first = next(module.parameters())
    weights = torch.empty(theirs, ours, dtype=first.dtype)
    nn.init.xavier_uniform_(weights, generator=generator)
    module.register_parameter(projector_name(loss, pair), nn.Parameter(weights))


def without_projectors(module: nn.Module) -> nn.Module:
    """Take the projectors from a student; return it."""
    for name in [name for name in module._parameters if name.startswith(_PROJECTOR)]:
        delattr(module, name)
    return module
