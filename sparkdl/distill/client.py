"""A client of several servers of one model, which come and go."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from sparkdl import redaction
from sparkdl.exceptions import ConfigError, DataError, ModelError
from sparkdl.serve.server import arrow_ipc
from sparkdl.wire.frame import Array

Addresses = Sequence[str] | str | Callable[[], Sequence[str]]
_PAUSES = (0.1, 2.0)  # seconds between two rounds over all servers: the first one, and the longest
_LONGEST = 64 << 10  # bytes that are read of an error, or of what a server says of its model
_LARGEST = 1 << 30  # bytes of an answer to rows


class Unavailable(Exception):  # noqa: N818 - no error: another server is asked
    """A server does not answer, or not now."""


def addresses_of(given: Any) -> tuple[str, ...]:
    """Return addresses as URLs."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"addresses={given!r:.100}: expected a list of 'host:port'")
    found = []
    for address in given:
        url = address if "://" in str(address) else f"http://{address}"
        try:
            parts = urlsplit(url)
            sound = (
                isinstance(address, str)
                and parts.scheme in ("http", "https")
                and parts.hostname
                and (parts.port or 0) >= 0
            )
        except ValueError:
            sound = False
        if not sound:
            raise ConfigError(
                f"addresses: {redaction.text(str(address))!r:.100} is no address; expected 'host:port' or "
                "'https://host:port'"
            )
        found.append(url.rstrip("/"))
    return tuple(found)


class Client:
    """Asks servers of one model, in tasks; it travels with the loss, and no connection with it.

    ``addresses`` that a file or a callable names are read again every ``refresh`` seconds, which is also how
    long a server that was lost is left out. An answer may take ``timeout`` seconds. ``patience`` is how many
    to wait while none answers, 0 for an error at once; ``None`` to answer nothing.
    """

    def __init__(
        self,
        addresses: Addresses,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        refresh: float = 5.0,
        patience: float | None = 60.0,
    ) -> None:
        self._addresses, self._token = addresses, token
        self._timeout, self._refresh, self._patience = timeout, refresh, patience
        self._model: dict[str, Any] | None = None
        self._begin()

    def _begin(self) -> None:
        self._known: tuple[str, ...] = ()
        self._read = float("-inf")
        self._resting: dict[str, float] = {}
        self._why = "no address is known"
        # Processes begin with different servers, so that each has its share from the first request on.
        self._turn = zlib.crc32(f"{socket.gethostname()} {os.getpid()}".encode())

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in _OPTIONS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def model(self) -> dict[str, Any] | None:
        """Return what a server says of its model; ``None`` if none answers and that is allowed.

        Raises ModelError if none answers in time, or one says something else.
        """
        if self._model is None:
            found = self._ask("GET", "/model", None)
            if found is not None:
                try:
                    told = json.loads(found)
                    self._model = {"model": str(told["model"])}
                    self._model |= {name: dict(told[name]) for name in ("inputs", "outputs")}
                except (ValueError, KeyError, TypeError) as error:
                    raise _failed(
                        "a server says nothing that a sparkdl serve would say of its model"
                    ) from error
        return self._model

    def predict(self, columns: Mapping[str, Array], output: str) -> Array | None:
        """Return a column of the answer to rows, as float32; ``None`` if none answers and that is allowed.

        ModelError is raised if none answers in time, or a server refuses the rows.
        """
        rows = len(next(iter(columns.values())))
        table = pa.table({name: to_arrow(array) for name, array in columns.items()})
        body = self._ask("POST", "/predict", arrow_ipc.write_table(table))
        if body is None:
            return None
        try:
            answer = arrow_ipc.read_table(body, rows)
            if len(answer) != rows or output not in answer.column_names:
                raise DataError(f"it has {len(answer)} rows of {', '.join(answer.column_names)}")
            return from_arrow(answer.column(output))
        except (DataError, pa.ArrowException, ValueError) as error:
            raise _failed(f"the answer to {rows} rows has no sound column {output!r}: {error}") from error

    def _ask(self, method: str, path: str, body: bytes | None) -> bytes | None:
        """Return the body of the first answer."""
        started, pause = time.monotonic(), _PAUSES[0]
        while True:
            for address in self._order():
                try:
                    return self._request(address, method, path, body)
                except Unavailable as why:
                    self._why = f"{redaction.text(address)}: {why}"
                    self._resting[address] = time.monotonic() + self._refresh
            if self._patience is None:
                return None
            if time.monotonic() - started + pause > self._patience:
                raise _failed(
                    f"no server answers ({self._why}), after {time.monotonic() - started:.0f} seconds; "
                    f"servers: {redaction.text(', '.join(self._known)) or 'none'}. Start one with sparkdl "
                    "serve, or go on without while there is none: Service(policy='skip')"
                )
            time.sleep(pause)
            pause = min(2 * pause, _PAUSES[1])
            self._resting.clear()  # one who waits asks all of them again

    def _order(self) -> list[str]:
        """Return the servers to ask, in the order of this request."""
        now = time.monotonic()
        if now - self._read >= self._refresh:
            self._look()
            self._read = now
        there = [address for address in self._known if self._resting.get(address, now) <= now]
        self._turn += 1
        first = self._turn % len(there) if there else 0
        return there[first:] + there[:first]

    def _look(self) -> None:
        """Read the addresses again; those of before stay if they cannot be read."""
        try:
            given: Any = self._addresses
            if isinstance(given, str):
                lines = (line.partition("#")[0].strip() for line in Path(given).read_text().splitlines())
                given = [line for line in lines if line]
            elif callable(given):
                given = list(given())
            self._known = addresses_of(given)
        except Exception as error:
            self._why = f"the addresses cannot be read: {error}"
        self._resting = {a: until for a, until in self._resting.items() if a in self._known}

    def _request(self, address: str, method: str, path: str, body: bytes | None) -> bytes:
        """Return the body of an answer."""
        parts = urlsplit(address)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        headers = {"Content-Type": arrow_ipc.MEDIA_TYPE} if body is not None else {}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            # A connection for each request: one that stays open would outlive the fit in the process.
            with closing(kind(parts.hostname or "", parts.port, timeout=self._timeout)) as connection:
                connection.request(method, f"{parts.path}{path}", body, headers)
                answer = connection.getresponse()
                if answer.status == 200:
                    return _whole(answer, _LONGEST if body is None else _LARGEST)
                said = answer.read(_LONGEST).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        if answer.status >= 500:
            raise Unavailable(f"status {answer.status}: {said:.200}")
        raise _failed(f"{redaction.text(address)} refuses the request, status {answer.status}: {said:.500}")


_OPTIONS = ("_addresses", "_token", "_timeout", "_refresh", "_patience", "_model")


def _whole(answer: http.client.HTTPResponse, longest: int) -> bytes:
    """Return an answer's body, of at most so many bytes: a server does not fill a worker's memory."""
    body = answer.read(longest + 1)
    if len(body) > longest:
        raise _failed(f"an answer has more than {longest:,} bytes; ask for fewer rows at a time")
    if answer.length:  # with a limit, a body that ends early is no error of its own
        raise http.client.IncompleteRead(body, answer.length)
    return body


def to_arrow(array: Array) -> pa.Array:
    """Return an array as a column: numbers, or lists of numbers."""
    array = np.ascontiguousarray(array)
    if array.ndim == 1:
        return pa.array(array)
    width = int(np.prod(array.shape[1:]))
    ends = np.arange(0, (len(array) + 1) * width, width, dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(array.reshape(-1)))


def from_arrow(column: pa.ChunkedArray) -> Array:
    """Return a column of numbers, or lists of equal lengths; null rows are NaN, ValueError for others."""
    rows = column.to_pylist() if column.null_count else None
    if rows is not None:
        width = next((len(row) for row in rows if isinstance(row, list)), 1)
        nothing = [float("nan")] * width
        found: Array = np.array([nothing if row is None else row for row in rows], np.float32)
    else:
        whole = pa.concat_arrays(column.chunks)
        flat = whole
        if pa.types.is_list(whole.type):
            flat, lengths = whole.flatten(), whole.value_lengths()
            if len(lengths.unique()) > 1:  # in all they may be as many as fit
                raise ValueError("lists of different lengths")
        found = flat.to_numpy(zero_copy_only=False).astype(np.float32)
    return found.reshape(len(column), -1)


def _failed(why: str) -> ModelError:
    return ModelError(f"the teacher's service failed: {why}", code="model-teacher")
