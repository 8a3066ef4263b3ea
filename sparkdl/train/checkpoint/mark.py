"""The seal of ``state.json``: its checksum; the files and checksums that it names, as they are read.

Nothing in it is believed before it is checked: names are those that a checkpoint can have, so none of
them leads out of the checkpoint's folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sparkdl._version import __version__
from sparkdl.allreduce import shard_files
from sparkdl.exceptions import ConfigError, is_integer
from sparkdl.saved.identity import KEY, Identity

FORMAT = 3
ROWS_APART = 3
"""From this format on, rows of embedding variables are in the files of the shards alone."""
WEIGHTS = "model.safetensors"
TRAINING = "training.safetensors"
STATE = "state.json"
DRAFT = "draft.json"
"""File in a folder that is being written, on stores that cannot rename."""
DAMAGED = "config-damaged"
"""Code of the error that a file is not what was written."""

_KINDS = {1: "slice"}  # first word of the names of the shards' files, by format
_SHARD = re.compile(r"(slice|shard|below[0-9]{1,4})-[0-9]{5,}-of-[0-9]{5,}\.safetensors", re.ASCII)
_SHARD_DRAFT = re.compile(_SHARD.pattern + r"\.[0-9a-f]{32}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Base:
    """The checkpoint to whose rows of embedding variables those of another one are changes."""

    iteration: int  # its completed iterations; it lies beside the other one
    seal: str  # seal of its ``state.json``


@dataclass(frozen=True, slots=True)
class Mark:
    """What ``state.json`` says."""

    state: Mapping[str, Any]  # fields of the TrainState, numbers or strings that ``float`` reads
    scores: Mapping[str, Any]  # likewise, by metric
    digests: Mapping[str, str]  # sha256 by name of the other files
    format: int = FORMAT  # format of the checkpoint
    base: Base | None = None  # where the rows are that it does not have; ``None`` if it has all rows
    seal: str = ""  # checksum of ``state.json``; empty in checkpoints of early releases
    # of which moment of which run it is; ``None`` in checkpoints of earlier releases
    identity: Identity | None = None

    @property
    def layers(self) -> list[list[str]]:
        """Names of the shards' files in their order, by layer; the newest layer last."""
        matches = (_SHARD.fullmatch(name) for name in self.digests)
        counts = Counter(match[1] for match in matches if match)
        newest = _KINDS.get(self.format, shard_files.layer_kind(0))
        below = [shard_files.layer_kind(layer) for layer in range(len(counts) - (newest in counts), 0, -1)]
        return [
            [shard_files.name_of(index, counts[newest], kind) for index in range(counts[newest])]
            for kind in (*below, newest)
        ]

    @classmethod
    def parse(cls, where: str, data: bytes) -> Mark:
        """Read the file; raises ConfigError if it is damaged, of a newer format, or no checkpoint's."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise damaged(where, STATE, f"it is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise _foreign(where, f"is a {type(found).__name__}")
        version = found.get("format")
        if not is_integer(version, 1):
            raise _foreign(where, f"has format={version!r:.40}")
        if version > FORMAT:
            raise ConfigError(
                f"checkpoint {where} has format {version}, written by sparkdl {found.get('sparkdl')!s:.40}; "
                f"this is sparkdl {__version__}, which reads formats up to {FORMAT}: install a newer one",
                code="config-resume",
            )
        if "seal" in found and found["seal"] != _seal_of(found):  # earlier releases wrote none
            raise damaged(where, STATE)
        for name in ("state", "scores", "sha256"):
            if not isinstance(found.get(name), dict):
                raise _foreign(where, f"has {name}={found.get(name)!r:.40}")
        base, seal = _base(where, found.get("base")), str(found.get("seal", ""))
        try:
            identity = Identity.parse(found.get(KEY))
        except (TypeError, ValueError, LookupError) as error:
            raise _foreign(where, f"has {KEY}={found[KEY]!r:.100}") from error
        mark = cls(found["state"], found["scores"], found["sha256"], version, base, seal, identity)
        known = {WEIGHTS, TRAINING, *chain.from_iterable(mark.layers)}
        for name, digest in mark.digests.items():
            if name not in known:
                raise _foreign(where, f"names the file {name!r:.60}, which no checkpoint has")
            if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
                raise _foreign(where, f"has the checksum {digest!r:.80} for {name}")
        if WEIGHTS not in mark.digests:
            raise _foreign(where, f"does not name {WEIGHTS}")
        lacking = known - mark.digests.keys() - {TRAINING}
        if lacking:
            raise _foreign(where, f"does not name {min(lacking)}")
        return mark


def _base(where: str, found: Any) -> Base | None:
    if found is None:
        return None
    try:
        base = Base(found["iteration"], found["seal"])
    except (TypeError, LookupError) as error:
        raise _foreign(where, f"has base={found!r:.100}") from error
    if (
        not is_integer(base.iteration, 0)
        or not isinstance(base.seal, str)
        or not _SHA256.fullmatch(base.seal)
    ):
        raise _foreign(where, f"has base={found!r:.100}")
    return base


def sealed(content: Mapping[str, Any]) -> bytes:
    """Return the file with a content, and a checksum of itself in it."""
    return json.dumps({**content, "seal": _seal_of(content)}, indent=1, allow_nan=False).encode()


def _seal_of(content: Mapping[str, Any]) -> str:
    rest = {name: value for name, value in content.items() if name != "seal"}
    try:
        return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    except RecursionError:
        return ""  # deeper than anything that was sealed


def is_own(name: str) -> bool:
    """Return whether a file of this name in a checkpoint's folder is the checkpoint's."""
    fixed = name in (WEIGHTS, TRAINING, STATE, DRAFT)
    return fixed or bool(_SHARD.fullmatch(name) or _SHARD_DRAFT.fullmatch(name))


def is_shard(name: str) -> bool:
    """Return whether a file of this name is a shard's."""
    return bool(_SHARD.fullmatch(name))


def damaged(where: str, name: str, why: str = "") -> ConfigError:
    """Return the error that a file of a checkpoint is not what was written."""
    return ConfigError(
        f"checkpoint {where} is damaged: {name} is not what was written{why and f' ({why:.200})'}",
        code=DAMAGED,
    )


def _foreign(where: str, why: str) -> ConfigError:
    return ConfigError(
        f"{where} is not a checkpoint: its {STATE} {why}; "
        "expected the one that a Checkpoint hook has written, see latest(folder)",
        code="config-resume",
    )
