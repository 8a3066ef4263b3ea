"""The identity of an artefact: its run; where two artefacts meet, whether they are of one.

Numbers of iterations do not tell: two runs count from 0, and two runs may resume one checkpoint. So each
start of a run draws a random identity and names the starts before it. Every artefact that a module goes into
carries it: saved models, published versions and changes, folders of rows, checkpoints. A module has it as an
attribute from where it was trained or read to where it is written.

Artefacts of earlier releases have none. They can be read alone, and match nothing.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Self

from torch import nn

from sparkdl.nn.embedding import IDENTITY, embedding_variables
from sparkdl.saved.weights import all_tensors, flat_bytes

KEY = "identity"
"""Name of the entry in artefacts."""
_RUN = re.compile(r"[0-9a-f]{32}|", re.ASCII)
_LARGEST = (1 << 63) - 1
_MOST = 256  # so many starts before are kept; artefacts of those before them are taken for another run's


@dataclass(frozen=True, slots=True)
class Identity:
    """A moment of a run."""

    run: str  # random name of the run's start; empty for what an earlier release wrote
    iteration: int = 0  # completed iterations, also those of starts before
    # the starts that led to this one, the oldest first, and at which iteration each was left
    before: tuple[tuple[str, int], ...] = ()

    @classmethod
    def begin(cls) -> Self:
        """Return that of a run that begins."""
        return cls(uuid.uuid4().hex)

    @classmethod
    def resumed(cls, parent: Identity | None, iteration: int) -> Self:
        """Return that of a start from an artefact."""
        known = parent if parent is not None else Identity("", iteration)
        return cls(uuid.uuid4().hex, iteration, (*known.before, (known.run, iteration))[-_MOST:])

    def at(self, iteration: int) -> Self:
        """Return another moment of the same start."""
        return replace(self, iteration=iteration)

    def is_same(self, other: Identity | None) -> bool:
        """Return whether both are known, and the same moment."""
        return other is not None and self.run != "" and self.point == other.point

    def came_through(self, other: Identity) -> bool:
        """Return whether the run was at another moment once, or is there now."""
        passed = (*self.before, (self.run, self.iteration))
        return any(run == other.run and other.iteration <= left for run, left in passed)

    @property
    def point(self) -> tuple[str, int]:
        """Start and iteration."""
        return self.run, self.iteration

    def to_json(self) -> dict[str, Any]:
        """Return it as artefacts have it."""
        return {"run": self.run, "iteration": self.iteration, "before": [list(each) for each in self.before]}

    @classmethod
    def parse(cls, found: Any) -> Self | None:
        """Read it from an artefact; ``None`` if an earlier release has written none.

        Raises TypeError, ValueError or LookupError if it is something else.
        """
        if found is None:
            return None
        before = tuple((_run(run), count_of(left)) for run, left in found["before"][-_MOST:])
        return cls(_run(found["run"]), count_of(found["iteration"]), before)

    def __str__(self) -> str:
        return f"the run {self.run[:8]} at iteration {self.iteration}"


def told(identity: Identity | None) -> str:
    """Return an identity for an error."""
    return str(identity) if identity is not None and identity.run else "a run that is not known"


def mark(module: nn.Module, identity: Identity | None) -> None:
    """Note of which moment of which run a module is; ``None`` forgets it."""
    for part in (module, *embedding_variables(module).values()):
        part.__dict__.pop(IDENTITY, None)
        if identity is not None:
            part.__dict__[IDENTITY] = identity


def identity_of(module: nn.Module) -> Identity | None:
    """Return that of a module, or of its parts; ``None`` if it is not known, or parts are of several runs.

    Rows that a ``state_dict`` has brought are of no run that is known.
    """
    parts = [part.__dict__.get(IDENTITY) for part in embedding_variables(module).values()]
    if not parts:
        parts = [own for part in module.modules() if (own := part.__dict__.get(IDENTITY)) is not None]
    first = parts[0] if parts else None
    return first if all(part == first for part in parts) else None


def marked(module: nn.Module) -> Identity:
    """Return that of a module; one that has none gets a new one, for all that is written of it."""
    found = identity_of(module)
    if found is None:
        found = Identity.begin()
        mark(module, found)
    return found


def digest_of(module: nn.Module) -> str:
    """Return the checksum of a module's tensors, without the rows of embedding variables."""
    digest = hashlib.sha256()
    for name, variable in embedding_variables(module).items():
        digest.update(f"{name} {variable.store.rule.seed} ".encode())
    # Not by a state_dict, for which all rows of a table would be put in order.
    for name, value in sorted(all_tensors(module), key=itemgetter(0)):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        digest.update(flat_bytes(value).numpy().data)
    return digest.hexdigest()


def _run(value: Any) -> str:
    if not isinstance(value, str) or not _RUN.fullmatch(value):
        raise TypeError(f"{value!r:.40} names no run")
    return value


def count_of(value: Any) -> int:
    """Return a whole number as files have it; raises TypeError if it is none, or below zero."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise TypeError(f"{value!r:.40} is no count")
    return value
