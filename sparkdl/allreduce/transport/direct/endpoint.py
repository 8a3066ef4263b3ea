"""A process's end of direct exchange: a listening socket, and connections to its peers.

They live from the first group to the last, in the process's memory, and are closed when anything goes wrong:
the process is another peer afterwards.
"""

from __future__ import annotations

import errno
import select
import socket
import time
import uuid
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress

from sparkdl.allreduce.transport.direct.connection import FOUND, HELLO, ClosedError, Connection
from sparkdl.allreduce.transport.direct.handshake import Handshake, RefusedError
from sparkdl.allreduce.transport.direct.peer import LostPeerError, Peer, open_socket, own_address

_MOST_STRANGERS = 256
"""So many that have not proved anything are listened to at a time; of more the oldest is turned away."""

_MOST_AT_ONCE = 32  # so many are let in before those that are there are listened to again

_REDIAL_SECONDS = 0.05  # after so long a peer is dialled again that was there, and has closed the connection

_NEWCOMER_SECONDS = 0.5
"""So long a new process may take to appear, once all that might run the absent ranks are gone."""

_PROBE_SECONDS = 0.2  # after so long it is looked whether members that have not dialled are there at all

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

_PROOF_SECONDS = 2.0  # so long may a stranger take to prove the secret

_DEAF_SECONDS = 0.05
"""For so long nobody is let in after the system had no socket for one, and no stranger's could be taken."""

_BACKLOG = 1024


class Endpoint:
    """A peer, and its connections."""

    def __init__(self, secret: bytes, host: str) -> None:
        self.secret = secret
        self._listener = open_socket(host)
        try:
            self._listener.bind((host, 0))
            self._listener.listen(_BACKLOG)
            self._listener.setblocking(False)
        except BaseException:
            self._listener.close()
            raise
        self.peer = Peer(uuid.uuid4().bytes, host, self._listener.getsockname()[1])
        self._links: dict[bytes, Connection] = {}

    def meet(
        self, group: int, own: Sequence[int], ranks: int, members: Sequence[Peer], seconds: float
    ) -> Mapping[int, Connection]:
        """Return the connection to each other rank of a group; ranks of one process have the same.

        Members that are not connected yet are dialled by the one of a pair that has the smaller id, and by
        whoever is not among the members. Then each says which ranks it runs, and which processes it has
        found: of a task there may be two attempts, and all have to mean the same one. Raises LostPeerError if
        not all are found, or others have found others.
        """
        meeting = _Meeting(self, group, own, ranks)
        try:
            return meeting.hold(members, time.monotonic() + seconds)
        finally:
            meeting.end()

    def close(self) -> None:
        """Close all sockets."""
        self._listener.close()
        for link in self._links.values():
            link.close()
        self._links.clear()


class _Meeting:
    """Finds a group's ranks; see :meth:`Endpoint.meet`."""

    def __init__(self, endpoint: Endpoint, group: int, own: Sequence[int], ranks: int) -> None:
        self._endpoint = endpoint
        self._own = endpoint.peer.id
        self._group = group
        self._hosted = own
        self._ranks = ranks
        self._found: dict[int, Connection] = {}
        self._said: dict[Connection, int] = {}
        self._checksum: int | None = None
        self._to_dial: dict[bytes, Peer] = {}
        self._redials: dict[bytes, float] = {}
        self._dialling: dict[int, Handshake] = {}
        self._strangers: dict[int, Handshake] = {}
        self._by_fd: dict[int, Connection] = {}
        self._poll = select.poll()
        self._deaf_until: float | None = None
        self._refused = ""
        self._awaited: dict[bytes, Peer] = {}  # members that dial this process
        self._probes: dict[int, tuple[socket.socket, bytes]] = {}

    def hold(self, members: Sequence[Peer], deadline: float) -> Mapping[int, Connection]:
        """Wait for all ranks."""
        endpoint = self._endpoint
        ids = {member.id for member in members}
        if self._own in ids:
            self._awaited = {member.id: member for member in members if member.id < self._own}
        for link in list(endpoint._links.values()):
            self._greet(link)
        for member in {member.id: member for member in members}.values():
            dials = self._own not in ids or self._own < member.id
            if member.id != self._own and member.id not in endpoint._links and dials:
                self._to_dial[member.id] = member
                self._dial(member)
        # Nobody knows of a newcomer, so it has no successor to wait for.
        patience = _NEWCOMER_SECONDS if self._own in ids else 0.0
        nobody_since: float | None = None
        probes_at = time.monotonic() + _PROBE_SECONDS
        self._poll.register(endpoint._listener, select.POLLIN)
        while not self._is_agreed():
            now = time.monotonic()
            if now >= deadline:
                raise self._absent()
            nobody_since = (nobody_since or now) if self._is_nobody_left() else None
            if nobody_since is not None and now - nobody_since >= patience:
                raise self._absent(gone=True)
            self._turn_away(now)
            self._redial(now)
            self._hear_again(now)
            if now >= probes_at:
                probes_at = deadline
                self._probe()
            pause = _REDIAL_SECONDS if self._redials or self._deaf_until is not None else 0.25
            for fd, events in self._poll.poll(max(1.0, min(deadline - now, pause) * 1000)):
                self._handle(fd, events)
        return self._found

    def _is_agreed(self) -> bool:
        """Return whether all ranks have found each other, and nothing waits to be sent."""
        complete = self._is_complete()
        if self._checksum is None:
            if not complete:
                return False
            ids = {rank: link.peer for rank, link in self._found.items()}
            ids |= dict.fromkeys(self._hosted, self._own)
            self._checksum = zlib.crc32(b"".join(ids[rank] for rank in sorted(ids)))
            for link in set(self._found.values()):
                link.queue(FOUND, self._checksum, self._group)
                self._read(link)
            complete = self._is_complete()
        if not complete:
            raise self._absent()
        for rank, link in self._found.items():
            if self._said.get(link, self._checksum) != self._checksum:
                raise LostPeerError(rank, "has found another process of a rank")
        return all(link in self._said and not link.queued for link in self._found.values())

    def _is_nobody_left(self) -> bool:
        """Return whether ranks are absent, and all processes have said which ones they run, or are gone."""
        links = self._endpoint._links
        coming = self._dialling or self._redials or self._strangers or self._awaited.keys() - links.keys()
        return not (coming or self._is_complete()) and {*links.values()} <= {*self._found.values()}

    def _is_complete(self) -> bool:
        return len(self._found) == self._ranks - len(self._hosted)

    def end(self) -> None:
        """Stop listening to those that have proved nothing."""
        for handshake in (*self._dialling.values(), *self._strangers.values()):
            handshake.sock.close()
        for sock, _ in self._probes.values():
            sock.close()

    def _absent(self, *, gone: bool = False) -> LostPeerError:
        absent = sorted({*range(self._ranks)} - {*self._hosted} - self._found.keys())
        what = f"not found in time: {absent[:8]}" if absent else "does not read"
        return LostPeerError(absent[0] if absent else None, what + self._refused, gone=gone)

    def _handle(self, fd: int, events: int) -> None:
        if fd == self._endpoint._listener.fileno():
            self._accept()
        elif fd in self._dialling:
            self._advance(fd, self._dialling, dialled=bool(events & select.POLLOUT))
        elif fd in self._strangers:
            self._advance(fd, self._strangers)
        elif fd in self._probes:
            self._probed(fd)
        elif fd in self._by_fd:
            self._read(self._by_fd[fd], gone=bool(events & select.POLLRDHUP))

    # -- strangers ------------------------------------------------------------------------------

    def _dial(self, member: Peer) -> None:
        while True:
            try:
                sock = self._connect(member)
                break
            except OSError as error:  # too many files are open
                if not self._drop_oldest():
                    raise LostPeerError(None, str(error)) from None
        self._dialling[sock.fileno()] = Handshake(sock, self._endpoint.secret, member.id, self._own)

    def _connect(self, member: Peer) -> socket.socket:
        sock = open_socket(member.host)
        sock.setblocking(False)
        sock.connect_ex((member.host, member.port))
        self._poll.register(sock, select.POLLOUT)
        return sock

    def _probe(self) -> None:
        """Look whether those that are to dial this process still listen: a dead one never dials."""
        for member in self._awaited.values():
            if member.id not in self._endpoint._links:
                try:
                    sock = self._connect(member)
                except OSError:  # too many files are open
                    return
                self._probes[sock.fileno()] = sock, member.id

    def _probed(self, fd: int) -> None:
        self._poll.unregister(fd)
        sock, member = self._probes.pop(fd)
        error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        sock.close()
        if error:
            self._refused = f"; a peer refused: error {error}"
            self._awaited.pop(member, None)

    def _redial(self, now: float) -> None:
        for member in [member for member, when in self._redials.items() if when <= now]:
            del self._redials[member]
            self._dial(self._to_dial[member])

    def _dial_later(self, member: bytes) -> None:
        """Dial a member again, which was there but has closed the connection: it had too many strangers."""
        if member in self._to_dial:
            self._redials[member] = time.monotonic() + _REDIAL_SECONDS

    def _accept(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                sock, _ = self._endpoint._listener.accept()
            except OSError as error:  # there is nobody any more
                if error.errno not in _NO_ROOM:
                    return
                if self._drop_oldest():
                    continue
                self._poll.unregister(self._endpoint._listener)  # it would be ready all the time
                self._deaf_until = time.monotonic() + _DEAF_SECONDS
                return
            sock.setblocking(False)
            handshake = Handshake(sock, self._endpoint.secret, self._own)
            handshake.deadline = time.monotonic() + _PROOF_SECONDS
            if len(self._strangers) >= _MOST_STRANGERS:
                self._drop_oldest()
            self._strangers[sock.fileno()] = handshake
            self._poll.register(sock, select.POLLIN)

    def _advance(self, fd: int, among: dict[int, Handshake], *, dialled: bool = False) -> None:
        handshake = among[fd]
        try:
            if dialled:
                error = handshake.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise RefusedError(f"error {error}")
                handshake.begin()
                self._poll.modify(fd, select.POLLIN)
                return
            peer = handshake.advance()
        except RefusedError as error:
            if among is self._dialling:
                self._refused = f"; a peer refused: {error}"
                if not dialled:
                    self._dial_later(handshake.listener)
            self._drop(fd, among)
            return
        if peer is None:
            return
        del among[fd]
        self._poll.unregister(fd)
        try:
            link = Connection(handshake.sock, peer)
        except OSError:  # gone in the meantime
            handshake.sock.close()
            return
        before = self._endpoint._links.pop(peer, None)
        if before is not None:
            self._forget(before)
        self._endpoint._links[peer] = link
        self._greet(link)

    def _turn_away(self, now: float) -> None:
        for fd in [fd for fd, handshake in self._strangers.items() if handshake.deadline < now]:
            self._drop(fd, self._strangers)

    def _hear_again(self, now: float) -> None:
        if self._deaf_until is not None and self._deaf_until <= now:
            self._deaf_until = None
            self._poll.register(self._endpoint._listener, select.POLLIN)

    def _drop_oldest(self) -> bool:
        """Turn the oldest stranger away; return whether there was one."""
        if not self._strangers:
            return False
        self._drop(next(iter(self._strangers)), self._strangers)
        return True

    def _drop(self, fd: int, among: dict[int, Handshake]) -> None:
        self._poll.unregister(fd)
        among.pop(fd).sock.close()

    # -- peers ----------------------------------------------------------------------------------

    def _greet(self, link: Connection) -> None:
        """Say which ranks run here, and listen."""
        for rank in self._hosted:
            link.queue(HELLO, rank, self._group)
        self._by_fd[link.fileno()] = link
        self._poll.register(link, select.POLLIN)
        self._read(link)

    def _read(self, link: Connection, *, gone: bool = False) -> None:
        """Send what is left, and look who it is, and whom it has found; what follows is for the group."""
        try:
            sent = link.flush()
            while link not in self._said and (found := link.receive()) is not None:
                if found.group > self._group:
                    raise LostPeerError(None, "a later group has begun")
                if found.group < self._group:
                    continue
                if found.kind == FOUND:
                    self._said[link] = found.number
                elif found.kind == HELLO and found.number not in self._hosted:  # else another attempt
                    self._found.setdefault(found.number, link)
            if gone and link in self._said:  # otherwise it is read to the end
                raise ClosedError("the connection was closed")
        except ClosedError as error:
            self._refused = f"; a peer is gone: {error}"
            self._forget(link)
            return
        reading = 0 if link in self._said else select.POLLIN
        self._poll.modify(link, reading | select.POLLRDHUP | (0 if sent else select.POLLOUT))

    def _forget(self, link: Connection) -> None:
        fd = link.fileno()
        if self._by_fd.pop(fd, None) is not None:
            self._poll.unregister(fd)
        if self._endpoint._links.get(link.peer) is link:
            del self._endpoint._links[link.peer]
        self._found = {rank: other for rank, other in self._found.items() if other is not link}
        self._said.pop(link, None)
        self._awaited.pop(link.peer, None)
        self._dial_later(link.peer)
        link.close()


def endpoint_of(fit_id: str, secret: bytes, driver: str) -> Endpoint:
    """Return this process's endpoint for a fit, made at first use; raises OSError if it cannot listen."""
    found = _endpoints.get(fit_id)
    if found is not None and found.secret != secret:  # of the partitions before a resize
        close_endpoint(fit_id)
    if fit_id not in _endpoints:
        _endpoints[fit_id] = Endpoint(secret, own_address(driver))
    return _endpoints[fit_id]


def close_endpoint(fit_id: str) -> bytes | None:
    """Close this process's endpoint for a fit, if there is one; return the id that it had."""
    endpoint = _endpoints.pop(fit_id, None)
    if endpoint is None:
        return None
    with suppress(OSError):
        endpoint.close()
    return endpoint.peer.id


_endpoints: dict[str, Endpoint] = {}
