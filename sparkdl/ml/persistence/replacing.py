"""A folder that is written beside its place, so that a save is there as a whole or not at all.

A save writes a draft beside its place, ``.name.saving-...``, and renames it when complete. What an
overwrite replaces is renamed to ``.name.previous`` just before that, and deleted afterwards. Readers look
there if there is nothing under the name itself: at every moment one of the two can be read.

Spark Connect cannot rename or delete. It writes what is new to ``.name.previous``, then empties the metadata
under the name, and writes all of it there.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sparkdl._spark.folders import HadoopFolders
from sparkdl.exceptions import ConfigError

_DRAFT = re.compile("[0-9a-f]+")


@contextmanager
def replacing(folders: HadoopFolders, path: str, overwrite: bool) -> Iterator[str]:
    """Give a path to write to; it becomes ``path`` at the end of ``with``, and is deleted on an error.

    Raises ConfigError if there is something already and ``overwrite`` is not set.
    """
    previous = sibling(path, "previous")
    if not overwrite and (folders.exists(path) or folders.exists(previous)):
        raise exists_already(path)
    _delete_drafts(folders, path)
    draft = sibling(path, f"saving-{uuid.uuid4().hex}")
    try:
        yield draft
        if folders.exists(path):
            folders.delete(previous)  # of an earlier save, which was cut off before it deleted it
            folders.rename(path, previous)
        folders.rename(draft, path)
    except BaseException:
        folders.delete(draft)
        if not folders.exists(path) and folders.exists(previous):
            folders.rename(previous, path)
        raise
    folders.delete(previous)


def _delete_drafts(folders: HadoopFolders, path: str) -> None:
    """Delete what crashes have left half-written.

    Names are compared, not matched: as a pattern, the path ``run[1]`` is ``run1``, another's.
    """
    prefix = sibling(path, "saving-")
    name = posixpath.basename(prefix)

    def is_draft(found: str) -> bool:
        return found.startswith(name) and _DRAFT.fullmatch(found.removeprefix(name)) is not None

    folders.delete_siblings(prefix, is_draft)


def sibling(path: str, ending: str) -> str:
    """Return the path of a hidden folder beside another."""
    folder, name = posixpath.split(path.rstrip("/"))
    return posixpath.join(folder, f".{name}.{ending}")


def exists_already(path: str) -> ConfigError:
    """Return the error for a path that is taken."""
    return ConfigError(
        f"path={path!r} exists: choose another, or replace it with write().overwrite().save(path)"
    )


def cannot_replace(path: str, metadata: Mapping[str, Any]) -> ConfigError:
    """Return the error for what a session that cannot delete folders must not overwrite, by its metadata."""
    found = str(metadata.get("class")).rpartition(".")[2]
    return ConfigError(
        f"path={path!r} holds a {found:.100}, and Spark Connect cannot delete it: overwrite() replaces what "
        "an estimator or a model of sparkdl has saved. Save under a new name; nothing was touched",
        code="config-connect",
    )
