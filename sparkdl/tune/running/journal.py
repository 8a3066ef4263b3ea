"""What a search keeps: a line for each rung, and the states of trials that may go on.

A search that is resumed begins anew and decides the same, for its decisions follow from seed and results
alone; rungs of which there is a line are not run again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, get_args

from sparkdl.exceptions import ConfigError
from sparkdl.tune.running.advance import Advanced, Ending
from sparkdl.wire import frame
from sparkdl.wire.private import make_folder, opener

_LINES = "search.jsonl"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Rung:
    """One trial's way by some epochs.

    Attributes:
        number: from 0, in the order in which rungs are decided.
        trial: the trial's number.
        done: completed epochs before.
        until: completed epochs after.
        state: number of the rung whose state it begins with; ``None`` at the trial's beginning.
        params: the trial's.
    """

    number: int
    trial: int
    done: int
    until: int
    state: int | None
    params: Mapping[str, Any]

    def key(self) -> dict[str, Any]:
        """Return, JSON-compatible, what tells it from others."""
        return {
            "rung": self.number,
            "trial": self.trial,
            "done": self.done,
            "until": self.until,
            "from": self.state,
            "params": {name: _plain(value) for name, value in self.params.items()},
        }


class Journal:
    """Lines and states of a search, in a folder.

    Args:
        folder: of the driver's machine; ``None`` for one that is deleted at the end.
        setting: what must be the same for a search to go on.
        resume: whether to go on with what is there.

    Raises:
        ConfigError: if there is a search and it is not to be resumed, or has another setting.
    """

    def __init__(
        self, folder: str | os.PathLike[str] | None, setting: Mapping[str, Any], resume: bool
    ) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="sparkdl-tune-") if folder is None else None
        self.folder = Path(self._own.name if self._own is not None else os.fspath(folder or ""))
        make_folder(self.folder)
        self._path = self.folder / _LINES
        self._known: dict[int, dict[str, Any]] = {}
        self._digests: dict[int, str] = {}
        self._ahead: set[int] = set()
        header = {"sparkdl-tune": _FORMAT, "setting": json.loads(json.dumps(setting))}
        if self._path.exists() and self._path.stat().st_size:
            self._read(header, resume)
        else:
            self._append(header)

    @property
    def replayed(self) -> int:
        """How many rungs are known of an earlier run."""
        return len(self._known)

    def _read(self, header: Mapping[str, Any], resume: bool) -> None:
        if not resume:
            raise ConfigError(
                f"folder={str(self.folder)!r}: a search has been kept there; go on with it by "
                "fit(..., resume=True), or choose another folder",
                code="config-resume",
            )
        text = self._path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]  # a line may have been cut off
        if not whole:  # not even the header came to its end
            os.truncate(self._path, 0)
            self._append(header)
            return
        try:
            found = [json.loads(line) for line in whole.splitlines()]
            if found[0]["sparkdl-tune"] != _FORMAT:
                raise ValueError(f"format {found[0]['sparkdl-tune']!r:.40}, expected {_FORMAT}")
            for name, value in header["setting"].items():
                before = found[0]["setting"].get(name)
                if before != value:
                    raise ConfigError(
                        f"resume: {name} is {value!r:.200} now and was {before!r:.200} when it began; "
                        "resume with the same, or choose another folder",
                        code="config-resume",
                    )
            for line in found[1:]:
                _result(line)
                self._known[line["rung"]] = line
                if line.get("state") is not None:
                    self._digests[line["rung"]] = str(line["state"])
            self._ahead = set(self._known)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                f"folder={str(self.folder)!r}: {_LINES} cannot be read: {error!r:.200}", code="config-resume"
            ) from error
        if len(whole) < len(text):
            os.truncate(self._path, len(whole))

    def known(self, rung: Rung) -> Advanced | None:
        """Return the result of a rung that has run before, without its state; ``None`` if it has not.

        Raises:
            ConfigError: if another rung has run in its place.
        """
        line = self._known.get(rung.number)
        if line is None:
            return None
        expected = json.loads(json.dumps(rung.key()))
        if any(line.get(name) != value for name, value in expected.items()):
            raise ConfigError(
                f"resume: rung {rung.number} was { ({n: line.get(n) for n in expected})!r:.300} and is "
                f"{expected!r:.300} now: the sampler or scheduler decides otherwise than before. Resume with "
                "the same versions of optuna and sparkdl, or choose another folder",
                code="config-resume",
            )
        return _result(line)

    def add(self, rung: Rung, result: Advanced) -> None:
        """Keep the result of a rung, if it is not kept: first its state, then its line."""
        if rung.number in self._known:
            self._ahead.discard(rung.number)
            return
        digest = self._keep(rung.number, frame.parts(result.state)) if result.state is not None else None
        reports = [{k: _plain(v) for k, v in row.items()} for row in result.reports]
        told = {"reports": reports, "ending": result.ending, "seconds": result.seconds, "state": digest}
        self._append({**rung.key(), **told})

    def _keep(self, number: int, parts: frame.Parts) -> str:
        """Write the state of a rung, to the disk if it is to outlast this process; return its checksum."""
        path, checksum = self._state(number), hashlib.sha256()
        draft = path.with_suffix(".draft")
        with open(draft, "wb", opener=opener) as file:
            for part in parts:
                checksum.update(part)
                file.write(part)
            if self._own is None:
                file.flush()
                os.fsync(file.fileno())
        draft.rename(path)
        self._digests[number] = checksum.hexdigest()
        return self._digests[number]

    def state(self, number: int) -> bytes:
        """Return the state that a rung has left.

        Raises:
            ConfigError: if it is gone, or damaged.
        """
        try:
            data = self._state(number).read_bytes()
        except FileNotFoundError:
            raise ConfigError(
                f"{self._state(number)} is gone, which a trial goes on from; begin again in another folder",
                code="config-resume",
            ) from None
        known = self._digests.get(number)  # earlier releases wrote none
        if known is not None and hashlib.sha256(data).hexdigest() != known:
            raise ConfigError(
                f"{self._state(number)} is damaged: it is not what was written; begin again in another "
                "folder",
                code="config-resume",
            )
        return data

    def prune(self, needed: Collection[int]) -> None:
        """Delete all states but those of some rungs, and of those that an earlier run had completed later."""
        needed = {*needed, *self._ahead}
        for path in self.folder.glob("state-*.bin"):
            if (
                path.stem.removeprefix("state-").isdigit()
                and int(path.stem.removeprefix("state-")) not in needed
            ):
                path.unlink(missing_ok=True)

    def _state(self, number: int) -> Path:
        return self.folder / f"state-{number:06d}.bin"

    def _append(self, line: Mapping[str, Any]) -> None:
        with open(self._path, "a", encoding="utf-8", opener=opener) as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.cleanup()


def _result(line: Mapping[str, Any]) -> Advanced:
    """Return the result that a line tells, without its state."""
    reports = [{k: math.nan if v is None else float(v) for k, v in row.items()} for row in line["reports"]]
    ending: Ending = line["ending"]
    if type(line["rung"]) is not int or ending not in get_args(Ending):
        raise TypeError(f"rung {line['rung']!r:.40} with ending {ending!r:.40}")
    return Advanced(reports, ending, None, float(line["seconds"]))


def _plain(value: Any) -> Any:
    """Return a value that JSON can say: numbers that are not finite become ``None``, objects their text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return repr(value)[:200]
