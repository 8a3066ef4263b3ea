"""The metadata of a saved object: one line of JSON, checked before any use."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from sparkdl._version import __version__
from sparkdl.exceptions import ConfigError
from sparkdl.saved import integrity

FORMAT = 3  # 1 had no checksums, 2 no tables
FORMAT_WITHOUT_TABLE = 2
KEY = "sparkdl"
SHA256 = "sha256"
METADATA, WEIGHTS, CODE = "metadata", "weights", "code"
LONGEST_METADATA = 128 << 20


def seal(metadata: Mapping[str, Any], digests: Mapping[str, str]) -> str:
    """Return metadata as JSON, with the checksums of the other files and its own.

    ``metadata`` is Spark's, with our entry. Raises ConfigError if it is longer than :func:`parse` reads.
    """
    plain = json.loads(json.dumps(metadata))
    plain.setdefault(KEY, {})[SHA256] = dict(digests)
    plain[KEY][SHA256][METADATA] = integrity.of_json(plain)
    text = json.dumps(plain, separators=(",", ":"))
    _check_length(text, "this cannot be saved")
    return text


def _check_length(text: str | bytes, what: str) -> None:
    if len(text) > LONGEST_METADATA:
        raise ConfigError(
            f"{what}: its metadata has {len(text)} bytes, expected at most {LONGEST_METADATA}",
            code="config-saved",
        )


def parse(text: str | bytes, path: str) -> dict[str, Any]:
    """Read metadata from JSON; raises ConfigError if it is no object, or more than metadata can be."""
    _check_length(text, f"path={path!r}")
    try:
        value = json.loads(text, object_pairs_hook=integrity.unique_names)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"path={path!r}: its metadata is not JSON: {error!s:.200}", code="config-saved"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"path={path!r} holds no metadata of Spark ML", code="config-saved")
    return value


def check_inside(folder: str, path: str, beside: Sequence[str] = ()) -> None:
    """Check that a local model's files lie in its folder: a link may lead anywhere, a pipe may never end."""
    root = os.path.realpath(folder)
    parts = [os.path.join(root, name) for name in (METADATA, WEIGHTS, CODE)]
    above = os.path.dirname(root)
    others = [os.path.join(above, name) for name in beside]
    parts = [part for part in (*parts, *others) if os.path.lexists(part)]
    try:
        inside = [entry.path for part in parts if os.path.isdir(part) for entry in os.scandir(part)]
        for found in (*parts, *inside):
            mode = os.stat(found).st_mode
            real = os.path.realpath(found)
            inside_of = above if found in others else root
            if not real.startswith(inside_of.rstrip("/") + "/") or not (
                stat.S_ISREG(mode) or stat.S_ISDIR(mode)
            ):
                raise ConfigError(
                    f"path={path!r}: {os.path.relpath(found, root)} leads to {real}, out of the model's "
                    "folder, or is no file. If you trust it, copy the model with what it links to: cp -rL",
                    code="config-saved",
                )
    except OSError as error:
        raise ConfigError(f"path={path!r} cannot be read: {error}", code="config-saved") from error


def check(metadata: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the metadata's entry, if this version can read it."""
    info = metadata.get(KEY)
    if not isinstance(info, dict) or type(info.get("format")) is not int:
        raise ConfigError(
            f"path={path!r} was not saved by sparkdl: it holds a {metadata.get('class', 'JSON file')!s:.200}",
            code="config-saved",
        )
    if info["format"] > FORMAT:
        raise ConfigError(
            f"path={path!r} has format {info['format']}, written by sparkdl {info.get('version')!s:.50}; "
            f"this is sparkdl {__version__}, which reads formats up to {FORMAT}: install a newer one",
            code="config-saved",
        )
    if info["format"] != 1 or SHA256 in info:
        check_seal(metadata, path)
    for name, holder, kinds in (
        *(("class", metadata, str), ("uid", metadata, str), ("attributes", info, dict)),
        *(("module", info, dict | None), ("pickled", info, list)),
        *((("table", info, dict),) if "table" in info else ()),
    ):
        if not isinstance(holder.get(name, ...), kinds):
            raise ConfigError(
                f"path={path!r} cannot be read: {name} in its metadata is {holder.get(name)!r:.100}",
                code="config-saved",
            )
    return info


def digest_of(metadata: Mapping[str, Any]) -> str:
    """Return the checksum that a saved model's metadata has of all its files; empty for those of format 1."""
    return str(metadata[KEY].get(SHA256, {}).get(METADATA, ""))


def version_of(metadata: Mapping[str, Any]) -> str:
    """Return the first digits of the checksum that a saved model's metadata has of all its files."""
    return digest_of(metadata)[:12] or str(metadata["uid"])


def check_seal(metadata: Mapping[str, Any], path: str) -> None:
    """Check that metadata is what :func:`seal` was given."""
    info = metadata[KEY] if isinstance(metadata[KEY], dict) else {}
    digests = info.get(SHA256)
    rest = dict(digests) if isinstance(digests, dict) else {}
    expected = rest.pop(METADATA, None)
    try:
        found = integrity.of_json({**metadata, KEY: {**info, SHA256: rest}})
    except RecursionError:
        found = "nested too deeply"
    integrity.check_digest(f"path={path!r}: the metadata is", found, expected)
