"""The file of changes from one version to another: which versions these are, and a checksum of it all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.saved.identity import KEY, Identity, count_of
from sparkdl.saved.integrity import check_digest, of_json

_METADATA, _ABOUT, _SEAL = "__metadata__", "sparkdl", "seal"


@dataclass(frozen=True, slots=True)
class About:
    """What a file of changes says of itself."""

    since: int  # completed iterations of the version that it changes
    until: int  # completed iterations of the version after
    # of that version; ``None`` in files of earlier releases, which have no checksum either
    identity: Identity | None = None
    base: str = ""  # checksum of the artefact that it changes; empty if it was not known


def sealed(data: bytes, about: About, aliases: Mapping[str, str]) -> bytes:
    """Return a safetensors file that says what it is."""
    header, body = _cut(data)
    meta: dict[str, Any] = {"since": about.since, "until": about.until, "aliases": dict(aliases)}
    if about.identity is not None:
        meta |= {KEY: about.identity.to_json(), "base": about.base}
        meta[_SEAL] = _seal_of(header, meta, body)
    text = json.dumps({_METADATA: {_ABOUT: json.dumps(meta)}, **header}).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at multiples of 8
    return len(text).to_bytes(8, "little") + text + body


def read_about(data: bytes, name: str = "the file of changes") -> About:
    """Read what a file says of itself, and compare its checksum."""
    try:
        header, body = _cut(data)
        meta = json.loads(header.pop(_METADATA)[_ABOUT])
        seal = meta.pop(_SEAL, None)
        if seal is not None:
            check_digest(f"{name} is", _seal_of(header, meta, body), seal, "config-saved")
        identity = Identity.parse(meta.get(KEY))
        if (identity is None) != (seal is None):
            raise ValueError("an identity needs a checksum")
        return About(count_of(meta["since"]), count_of(meta["until"]), identity, str(meta.get("base", "")))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{name}: not a file of write_changes: {error!r:.200}", code="config-saved"
        ) from error


def _cut(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a safetensors file, and the values."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    if not isinstance(header, dict):
        raise TypeError("the header is no object")
    return header, data[8 + length :]


def _seal_of(header: Mapping[str, Any], meta: Mapping[str, Any], body: bytes) -> str:
    whole = hashlib.sha256(of_json({"tensors": dict(header), "about": dict(meta)}).encode())
    whole.update(body)
    return whole.hexdigest()
