"""Chains of versions and changes in a folder, and whether they belong together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sparkdl.exceptions import ConfigError
from sparkdl.saved import identity
from sparkdl.saved.change_file import About, read_about
from sparkdl.saved.identity import Identity
from sparkdl.saved.integrity import check_digest
from sparkdl.saved.metadata import KEY, METADATA, SHA256, check, digest_of, parse
from sparkdl.saved.published import Chains, ChangesFile, Current, changes_name, name_of
from sparkdl.train.checkpoint.store import CheckpointStore, join


def metadata_in(store: CheckpointStore, folder: str) -> dict[str, Any] | None:
    """Return the metadata of a saved model; ``None`` if there is none yet."""
    names = [name for name in store.entries(join(folder, METADATA)) if not name.startswith(("_", "."))]
    if not names:
        return None
    where = store.outside(folder)
    metadata = parse(b"".join(store.read(join(folder, METADATA, name)) for name in sorted(names)), where)
    check(metadata, where)
    return metadata


def identity_in(metadata: Mapping[str, Any]) -> Identity | None:
    """Return of which run a saved model is."""
    try:
        return Identity.parse(metadata[KEY].get(identity.KEY))
    except (TypeError, ValueError, LookupError):
        return None


def content_of(metadata: Mapping[str, Any]) -> Any:
    """Return what is equal for two saves of one model."""
    told = {name: value for name, value in metadata[KEY].items() if name not in (identity.KEY, "version")}
    told[SHA256] = {name: own for name, own in told.get(SHA256, {}).items() if name != METADATA}
    return json.loads(json.dumps([metadata["class"], metadata.get("paramMap"), told]))


def pointer_to(
    store: CheckpointStore, root: str, iteration: int, last: Current | None, batches: int, seconds: float
) -> Current:
    """Return what ``current.json`` is to say of a version that is there."""
    chain = Chains.of(store.entries(root)).leading_to(iteration)
    base = chain[0][0] if chain else iteration
    metadata = metadata_in(store, join(root, name_of(base)))
    if metadata is None:
        raise ConfigError(f"{store.outside(join(root, name_of(base)))} is not complete", code="config-saved")
    digest, own = digest_of(metadata), identity_in(metadata)
    run, before = own.run if own is not None else "", digest
    changes: list[ChangesFile] = []
    for since, until in chain:
        name = changes_name(since, until)
        data = store.read(join(root, name))
        about, found = read_about(data, name), hashlib.sha256(data).hexdigest()
        _check_place(about, ChangesFile(since, until, found), before, last)
        changes.append(ChangesFile(since, until, found))
        before, run = found, about.identity.run if about.identity is not None else ""
    return Current(iteration, batches, seconds, tuple(changes), run, digest if run else "")


def _check_place(about: About, file: ChangesFile, before: str, last: Current | None) -> None:
    """Check that a file of changes is what was written, and belongs where its name says."""
    if about.identity is None:  # of an earlier release: only current.json knows its checksum
        known = {change.name: change.sha256 for change in last.changes} if last is not None else {}
        if file.name not in known:
            raise ConfigError(
                f"{file.name} was written by an earlier release, and nothing says what its checksum was: it "
                "cannot be gone back to. Go back to a complete version",
                code="config-saved",
            )
        check_digest(f"{file.name} is", file.sha256, known[file.name], "config-saved")
    elif about.base != before or (about.since, about.until) != (file.since, file.until):
        raise ConfigError(
            f"{file.name} does not belong to the version before it: it is of {about.identity}, and was made "
            f"of {about.base:.16}, but that is {before:.16}. Go back to another version",
            code="config-saved",
        )
