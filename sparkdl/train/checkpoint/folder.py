"""A folder of checkpoints: written with checksums of their files, found, listed, pruned, set aside."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from sparkdl.allreduce.shard_files import Merge
from sparkdl.exceptions import ConfigError
from sparkdl.train.checkpoint.claim import Claim
from sparkdl.train.checkpoint.contents import CheckpointFiles
from sparkdl.train.checkpoint.mark import DRAFT, STATE, Base, Mark, is_own, is_shard, sealed
from sparkdl.train.checkpoint.store import CheckpointStore, Path, join
from sparkdl.wire.frame import Buffer

_NAME = re.compile(r"iteration-([0-9]{8,})", re.ASCII)
_DRAFT_NAME = re.compile(r"\.iteration-[0-9]{8,}\.[0-9a-f]{32}", re.ASCII)


class CheckpointFolder:
    """The checkpoints of one run, in a local or remote folder; ConfigError if it cannot be opened.

    Nothing is deleted there but the files of checkpoints, by their names.
    """

    def __init__(self, path: Path) -> None:
        self._store = CheckpointStore(path)
        self._root = self._store.root
        self._claim: Claim | None = None

    @property
    def reached_by_executors(self) -> bool:
        """Whether tasks on other machines can write here too, as far as its kind tells."""
        return not self._store.renames and "memory" not in self._store.fs.protocol

    def create(self) -> None:
        """Make the folder if there is none, and remove what a crash has left half-written.

        Raises ConfigError if the folder cannot be made, or what was left cannot be removed.
        """
        self._make()
        try:
            for name, is_file in self._store.entries(self._root).items():
                if _DRAFT_NAME.fullmatch(name) and is_file:
                    self._store.delete(self._full(name))
                elif _DRAFT_NAME.fullmatch(name) or self._is_draft(name):
                    self._remove(self._full(name))
        except OSError as error:
            raise ConfigError(f"cannot write to the checkpoint folder {self._root}: {error}") from error

    def _make(self) -> None:
        try:
            self._store.make(self._root)
        except OSError as error:
            raise ConfigError(f"cannot make the checkpoint folder {self._root}: {error}") from error

    def _is_draft(self, name: str) -> bool:
        """Whether this is a folder in which a store without renames has half a checkpoint."""
        if _iteration_of(name) is None:
            return False
        entries = self._store.entries(self._full(name))
        return DRAFT in entries and STATE not in entries

    def claim(self, run: str) -> None:
        """Make the folder and let no other run write to it until :meth:`release`.

        Raises CheckpointError if another run writes here, ConfigError if the folder cannot be made or written
        to.
        """
        self.release()
        self._make()
        self._claim = Claim(self._store, run)

    def release(self) -> None:
        """Let other runs write here."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _check_claim(self) -> None:
        if self._claim is not None:
            self._claim.check()

    def complete(self) -> dict[int, str]:
        """Return paths, or URLs, of the complete checkpoints, oldest first, by number of iterations."""
        return {n: self._store.outside(path) for n, path in self._complete().items()}

    def _complete(self) -> dict[int, str]:
        found = self._by_iteration()
        return {n: path for n, path in found.items() if self._store.exists(join(path, STATE))}

    def foreign(self) -> dict[int, str]:
        """Return files and folders, by number of iterations, that have a checkpoint's name but are none."""
        found = self._by_iteration()
        return {n: path for n, path in found.items() if not self._store.exists(join(path, STATE))}

    def _by_iteration(self) -> dict[int, str]:
        numbers = {name: _iteration_of(name) for name in self._store.entries(self._root)}
        found = {n: self._full(name) for name, n in numbers.items() if n is not None}
        return dict(sorted(found.items()))

    def latest(self) -> str | None:
        """Return the newest complete checkpoint, ``None`` if there is none."""
        complete = list(self.complete().values())
        return complete[-1] if complete else None

    def path_of(self, iteration: int) -> str:
        """Return the path, or URL, that the checkpoint of an iteration has if there is one."""
        return self._store.outside(self._full(name_of(iteration)))

    def check_writable(self) -> None:
        """Write a small file and delete it again; raises ConfigError if that fails."""
        probe = self._full(f".{name_of(0)}.{uuid.uuid4().hex}")
        try:
            self._store.write(probe, json.dumps("can this be written?").encode())
            self._store.delete(probe)
        except OSError as error:
            raise ConfigError(f"cannot write to the checkpoint folder {self._root}: {error}") from error

    def begin(self, iteration: int) -> str:
        """Return the path of a new folder for the files of a checkpoint.

        Raises CheckpointError if another run has taken the folder over, OSError if it cannot be made, or is
        there already.
        """
        self._check_claim()
        name = name_of(iteration)
        if self._store.renames:
            place = self._full(f".{name}.{uuid.uuid4().hex}")
            self._store.make(place)
        else:
            place = self._full(name)
            if self._is_draft(name):
                self._remove(place)
            if self._store.entries(place):
                raise FileExistsError(f"{place} is there already")
            self._store.make(place)
            self._store.write(join(place, DRAFT), b"{}")
        return self._store.outside(place)

    def finish(
        self, place: str, files: CheckpointFiles, digests: Mapping[str, str], merge: Merge | None = None
    ) -> str:
        """Write what is still missing, the mark last, and return the checkpoint's path.

        ``place`` is what :meth:`begin` has returned; it is deleted if this fails. ``digests`` are the sha256
        of files that are there already. ``merge`` makes files with all rows of those with changes:
        :mod:`sparkdl.train.checkpoint.merging`. Errors are as of :meth:`begin`.
        """
        inside = self._store.inside(place)
        final = self._full(name_of(files.iteration))
        try:
            found = dict(digests)
            for name, data in files.contents():
                self._store.write(join(inside, name), data)
                found[name] = hashlib.sha256(data).hexdigest()
            if merge is not None:
                whole = merge(place, found, partial(self._write_whole, inside))
                for name in filter(is_shard, found.keys() - whole.keys()):
                    self._store.delete(join(inside, name))
                found = {name: own for name, own in found.items() if not is_shard(name)} | whole
            self._check_claim()
            mark: dict[str, Any] = {**files.mark, "sha256": found}
            if files.base:
                mark["base"] = {"iteration": files.base, "seal": self._mark(files.base).seal}
            self._store.write(join(inside, STATE), sealed(mark))
            if self._store.renames:
                self._store.sync(inside)
                self._store.rename(inside, final)
            else:
                self._store.delete(join(inside, DRAFT))
        except BaseException:
            self.discard(place)
            raise
        self._store.sync(self._root)
        return self._store.outside(final)

    def discard(self, place: str) -> None:
        """Delete what :meth:`begin` has made, as far as possible."""
        try:
            self._remove(self._store.inside(place))
        except OSError:
            pass  # the next run's create() tries again

    def _write_whole(self, folder: str, name: str, parts: Iterable[Buffer]) -> str:
        self._check_claim()
        return self._store.write_whole(join(folder, name), parts)

    def _mark(self, iteration: int) -> Mark:
        """Return the mark of a complete checkpoint."""
        path = self._full(name_of(iteration))
        return Mark.parse(self._store.outside(path), self._store.read(join(path, STATE)))

    def _needed(self, iterations: Iterable[int]) -> set[int]:
        """Return checkpoints, and those to whose rows theirs are changes."""
        found: set[int] = set()
        for iteration in iterations:
            now: int | None = iteration
            while now is not None and now not in found:
                found.add(now)
                try:
                    base = self._mark(now).base
                except (OSError, ConfigError):
                    break  # nothing can be read on top of it
                now = base.iteration if base is not None else None
        return found

    def links(self, newest: Base | None) -> list[int]:
        """Return the checkpoints that one needs, itself as the last; none if it is not in this folder."""
        if newest is None or newest.iteration not in self._complete():
            return []
        mark = self._mark(newest.iteration)
        return sorted(self._needed([newest.iteration])) if mark.seal == newest.seal else []

    def prune(self, keep: int, pinned: Collection[int] = ()) -> None:
        """Delete all but the newest complete checkpoints and what they need; errors as of :meth:`begin`."""
        complete = self._complete()
        needed = self._needed([*list(complete)[-keep:], *pinned])
        self._delete([path for n, path in complete.items() if n not in needed])

    def delete_after(self, iteration: int) -> None:
        """Delete the checkpoints of later iterations, the newest first; errors as of :meth:`begin`."""
        self._delete([path for n, path in reversed(self._complete().items()) if n > iteration])

    def _delete(self, paths: Sequence[str]) -> None:
        """Delete complete checkpoints, none of them ever half."""
        own = [path for path in paths if not self._store.is_link(path)]
        if own:
            self._check_claim()
        for path in own:
            if not self._store.renames:
                self._store.write(join(path, DRAFT), b"{}")  # so that a crash leaves what create() removes
            elif all(is_own(name) for name in self._store.entries(path)):
                draft = self._full(f".{posixpath.basename(path)}.{uuid.uuid4().hex}")
                self._store.rename(path, draft)
                path = draft
            self._remove(path)

    def _remove(self, path: str) -> None:
        """Delete the files of a checkpoint, the mark first, and the folder if it has no other files."""
        if self._store.is_link(path):
            return
        own = [name for name, is_file in self._store.entries(path).items() if is_file and is_own(name)]
        self._store.delete_files(path, sorted(own, key=lambda name: (name != STATE, name == DRAFT)))

    def describe(self, path: str, *, verify: bool) -> dict[str, Any]:
        """Return iteration, state, scores, size and problem (empty if none is found) of a checkpoint."""
        iteration = int(path.rstrip("/").rpartition("-")[2])
        where, path = path, self._store.inside(path)
        row: dict[str, Any] = {"iteration": iteration, "path": where, "verified": verify}
        row |= {"state": {}, "scores": {}, "bytes": 0, "problem": "", "base": None}
        try:
            mark = Mark.parse(where, self._store.read(join(path, STATE)))
            row |= {"state": dict(mark.state), "scores": dict(mark.scores)}
            row["bytes"] = sum(int(self._store.fs.size(join(path, name))) for name in mark.digests)
            changed = [
                name
                for name, digest in mark.digests.items()
                if verify and self._store.digest(join(path, name)) != digest
            ]
            row["problem"] = f"damaged: {', '.join(changed)}" if changed else ""
            if mark.base is not None:
                row["base"] = mark.base.iteration
                row["problem"] = row["problem"] or self._problem_below(mark.base, verify=verify)
        except (OSError, ConfigError) as error:
            row["problem"] = f"unreadable: {error}"
        return row

    def _problem_below(self, base: Base, *, verify: bool) -> str:
        """Return the problem of the checkpoint that has the other rows, empty if none is found."""
        path = self.path_of(base.iteration)
        try:
            if self._mark(base.iteration).seal != base.seal:
                return f"needs {path}, which is another checkpoint now"
        except OSError:
            return f"needs {path}, which is not there"
        except ConfigError as error:
            return f"needs {path}: {error}"
        problem = self.describe(path, verify=verify)["problem"]
        return f"needs {path}: {problem}" if problem else ""

    def set_aside(self, path: str) -> str:
        """Rename a damaged checkpoint, so that it is neither found nor lost; return its new path.

        Raises ConfigError if it cannot be renamed.
        """
        name = posixpath.basename(path.rstrip("/"))
        present = self._store.entries(self._root)
        names = (f"damaged-{name}{f'-{n}' if n > 1 else ''}" for n in count(1))
        target = self._full(next(new for new in names if new not in present))
        try:
            self._store.rename(self._full(name), target, first=STATE)
        except OSError as error:
            raise ConfigError(f"cannot rename the damaged checkpoint {path}: {error}") from error
        return self._store.outside(target)

    def _full(self, name: str) -> str:
        return join(self._root, name)


def name_of(iteration: int) -> str:
    """Return the name of a checkpoint's folder."""
    return f"iteration-{iteration:08d}"


def _iteration_of(name: str) -> int | None:
    """Return the iteration of a checkpoint's folder, ``None`` if it is called otherwise."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and name == name_of(int(match[1])) else None
