"""The journal of a search: a line for each rung, and the states of trials that may go on.

A search that is resumed begins anew and decides the same, for its decisions follow from seed and results
alone; rungs of which there is a line are not run again.

Values are compared by digests that are equal in all processes. A value without one is a pair of its text and
``null`` in the journal, and is compared by its position alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, get_args

from sparkdl import attempts
from sparkdl.exceptions import ConfigError
from sparkdl.saved.digest import label_of
from sparkdl.train.checkpoint.lock import Lock
from sparkdl.tune.running.advance import Advanced, Ending
from sparkdl.wire import frame
from sparkdl.wire.private import make_folder, opener

_LINES = "search.jsonl"
_FORMAT = 2
_BEFORE = 1
"""Format of earlier releases, which noted no Trainers and no checksums of rows, and choices as text."""
_OTHER = "resume with the same, or choose another folder"


@dataclass(frozen=True, slots=True)
class Rung:
    """One trial's way by some epochs."""

    number: int  # from 0, in the order in which rungs are decided
    trial: int  # the trial's number
    done: int  # completed epochs before
    until: int  # completed epochs after
    state: int | None  # number of the rung whose state it begins with; ``None`` at the trial's beginning
    params: Mapping[str, Any]  # the trial's
    # text and digest of the parts of the trial's Trainer, by name; only in its first rung
    made: Mapping[str, Any] = field(default_factory=dict)

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
    """Lines and states of a search, in a folder of the driver's machine; ``None`` for one deleted at the end.

    ``before`` is the setting as earlier releases wrote it, without what they did not. Raises ConfigError if a
    search is there that is not to be resumed, has another setting, or is in use.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        setting: Mapping[str, Any],
        resume: bool,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        self._own = tempfile.TemporaryDirectory(prefix="sparkdl-tune-") if folder is None else None
        self.folder = Path(self._own.name if self._own is not None else os.fspath(folder or ""))
        make_folder(self.folder)
        self._path = self.folder / _LINES
        self._known: dict[int, dict[str, Any]] = {}
        self._digests: dict[int, str] = {}
        self._ahead: set[int] = set()
        self._before = before
        header = {"sparkdl-tune": _FORMAT, "setting": json.loads(json.dumps(setting))}
        self._lock = self._locked()
        try:
            if self._path.stat().st_size:
                self._read(header, resume)
            else:
                self._append(header)
        except BaseException:
            self._close()
            raise

    def _locked(self) -> Lock:
        """Keep other programs out, where the file system has locks."""
        open(self._path, "a", opener=opener).close()
        lock = Lock(os.fspath(self._path), os.O_RDWR)
        try:
            lock.take(wait=False)
        except BlockingIOError:
            lock.close()
            raise ConfigError(
                f"folder={str(self.folder)!r}: another program searches there now. Give each search a "
                "folder of its own; or wait until the other one has ended, or end it, and go on by "
                "fit(..., resume=True)",
                code="config-resume",
            ) from None
        except (OSError, ImportError):
            pass
        return lock

    @property
    def is_kept(self) -> bool:
        """Whether the search can be resumed."""
        return self._own is None

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
            version = found[0]["sparkdl-tune"]
            if version not in (_BEFORE, _FORMAT):
                raise ValueError(f"format {version!r:.40}, expected {_FORMAT}")
            if version == _FORMAT or self._before is None:
                _check(found[0]["setting"], header["setting"])
            else:
                _check_before(found[0]["setting"], self._before)
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
        """Return the result of a rung that has run before, without its state; ``None`` if it has not."""
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
        if rung.made and "trainer" in line:  # earlier releases wrote none
            _check_trainer(rung, line["trainer"])
        return _result(line)

    def add(self, rung: Rung, result: Advanced) -> None:
        """Keep the result of a rung, if it is not kept: first its state, then its line."""
        if rung.number in self._known:
            self._ahead.discard(rung.number)
            return
        digest = self._keep(rung.number, frame.parts(result.state)) if result.state is not None else None
        reports = [{k: _plain(v) for k, v in row.items()} for row in result.reports]
        told = {"reports": reports, "ending": result.ending, "seconds": result.seconds, "state": digest}
        told |= {"error": result.error} if result.error else {}
        self._append({**rung.key(), **told, **({"trainer": rung.made} if rung.made else {})})

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
        """Return the state that a rung has left."""
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
            number = path.stem.removeprefix("state-")
            if number.isdigit() and int(number) not in needed:
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
        self._close()

    def _close(self) -> None:
        self._lock.close()
        if self._own is not None:
            self._own.cleanup()


def _result(line: Mapping[str, Any]) -> Advanced:
    """Return the result that a line tells, without its state."""
    reports = [{k: math.nan if v is None else float(v) for k, v in row.items()} for row in line["reports"]]
    ending: Ending = line["ending"]
    if type(line["rung"]) is not int or ending not in get_args(Ending):
        raise TypeError(f"rung {line['rung']!r:.40} with ending {ending!r:.40}")
    return Advanced(reports, ending, None, float(line["seconds"]), str(line.get("error", "")))


def _plain(value: Any) -> Any:
    """Return a value that JSON can say: numbers that are not finite become ``None``, objects their text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return label_of(value)


def _check(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that a search has the setting that it had."""
    for name, value in now.items():
        before = then.get(name)
        if before == value:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            if "contents" in value:
                before = _comparable(name, before, value)
            _check_parts(name, before, value)
            continue
        raise _other(name, value, before)


_VALUES = {
    "positions": "have other places in their source",
    "contents": "have other values",
    "values": "have other values",
}


def _check_parts(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for part in dict.fromkeys([*now, *then]):
        if then.get(part) != now.get(part):
            if part in _VALUES:
                told = f"resume: {name} {_VALUES[part]} than when it began; {_OTHER}"
                raise ConfigError(told, code="config-resume")
            raise _other(f"{name}: {part!r}", now.get(part), then.get(part))


def _comparable(name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is known of rows, as far as it can be compared: bytes only with equal partitions.

    Other values are a warning if the next driver of a job goes on by itself: its query is the same, and sums
    may differ in a last digit.
    """
    then = {"values": now["values"], **then}  # earlier releases write none
    if then.get("partitions") != now["partitions"]:
        then |= {"partitions": now["partitions"], "contents": now["contents"]}
    values = {name: now[name] for name in ("contents", "values")}
    if any(then.get(part) != value for part, value in values.items()) and attempts.current() is not None:
        warnings.warn(
            f"resume: {name} have other values than when the search began", UserWarning, stacklevel=7
        )
        then |= values
    return then


def _check_before(then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check the setting of a search that an earlier release has begun, as far as that wrote it."""
    for name in (name for name, value in now["space"].items() if value is None):
        raise ConfigError(
            f"resume: space: {name!r} was begun by an earlier release, which kept objects by their text, and "
            "does not tell whether they are the same; choose another folder, or resume with that release",
            code="config-resume",
        )
    _check(then, now)
    warnings.warn(
        "resume: the search was begun by an earlier release, which noted neither checksums of the rows nor "
        "the Trainers' losses and options, so these are not compared",
        UserWarning,
        stacklevel=6,
    )


def _check_trainer(rung: Rung, then: Mapping[str, Any]) -> None:
    """Check that a trial's Trainer is made of what it was made of.

    Other first weights are a warning if the next driver of a job goes on by itself: they may differ in a last
    digit on another machine.
    """
    for part in dict.fromkeys([*rung.made, *then]):
        now, before = rung.made.get(part), then.get(part)
        if _same(now, before):
            continue
        error = _other(
            f"the Trainer of trial {rung.trial}: {part}", now or "the default", before or "the default"
        )
        if part == "weights" and attempts.current() is not None:
            warnings.warn(str(error), UserWarning, stacklevel=4)
            continue
        raise error


def _same(now: Any, before: Any) -> bool:
    """Whether values are the same, as far as their digests tell."""
    if now is None or before is None:
        return now is before
    return bool(now[1] == before[1] and (now[1] is not None or now[0] == before[0]))


def _other(name: str, now: Any, before: Any) -> ConfigError:
    return ConfigError(
        f"resume: {name} is {now!r:.200} now and was {before!r:.200} when it began; {_OTHER}",
        code="config-resume",
    )
