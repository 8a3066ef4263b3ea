"""Options of a server."""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass

from sparkdl.exceptions import ConfigError

TOKEN_VARIABLE = "SPARKDL_SERVE_TOKEN"
_SHORTEST_TOKEN = 16
_LONGEST_TOKEN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of a server, checked; raises ConfigError if a value cannot work, or is not safe."""

    host: str = "127.0.0.1"  # address to listen at
    port: int = 8000  # port; 0 for any that is free
    token: str | None = None  # what clients must prove to have; ``None`` lets anyone in who can connect
    open: bool = False  # whether addresses other than this machine's own may do without a token
    certificate: str | None = None  # file with the certificate chain for TLS; plain HTTP without it
    key: str | None = None  # file with the certificate's key, if it is not in the same file
    copies: int | None = None  # of the module, one a thread, which share the weights; one per core by default
    max_rows: int = 1024  # most rows of a forward pass, and of a request
    wait: float = 0.0  # seconds that a request may wait for others to share its forward pass
    max_queue: int = 8192  # most rows that wait for a free copy
    max_body: int = 16 << 20  # most bytes of a request
    max_connections: int = 512  # most connections at a time
    timeout: float = 30.0  # seconds that a client has to send a request, and a request to get its answer
    watch: float = 0.0  # seconds between two looks for a new version; 0 for none but at a signal

    def __post_init__(self) -> None:
        least = {"copies": 1, "max_rows": 1, "max_queue": 1, "max_body": 1024, "max_connections": 1}
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < bound):
                raise ConfigError(f"{name}={value!r}: expected a whole number of at least {bound}")
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port!r}: expected 0 to 65535")
        for name, low, high in (("wait", 0, 10), ("timeout", 0.1, 3600), ("watch", 0, 86400)):
            if not low <= getattr(self, name) <= high:
                raise ConfigError(f"{name}={getattr(self, name)!r}: expected {low} to {high} seconds")
        if self.max_queue < self.max_rows:
            raise ConfigError(
                f"max_queue={self.max_queue}: expected at least max_rows={self.max_rows}, a request's rows"
            )
        if self.key is not None and self.certificate is None:
            raise ConfigError("key is set without certificate: give both for TLS")
        if self.token is not None and self.open:
            raise ConfigError(
                f"--no-token lets anyone in, and there is a token, in a file (--token-file) or in "
                f"{TOKEN_VARIABLE}: leave one of them out"
            )
        if self.token is not None:
            _check_token(self.token)
        elif not self.is_local and not self.open:
            raise ConfigError(
                f"host={self.host!r} is reached from other machines: give a token in a file of mode 0600 "
                f"(--token-file) or in {TOKEN_VARIABLE}, or say --no-token if something else guards the port"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def find_token(path: str | None) -> str | None:
    """Return the token of a file, or else of the environment; ``None`` if there is none."""
    if path is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            text = file.read(_LONGEST_TOKEN + 1)
    except OSError as error:
        raise ConfigError(f"token file {path!r} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077 or status.st_uid not in (0, os.getuid()):
        raise ConfigError(
            f"token file {path!r} has mode {stat.S_IMODE(status.st_mode):04o}: others could read or change "
            "it. It must be yours alone: chmod 600"
        )
    return text.decode("utf-8", "replace").strip()


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a pipe whose other end nobody has opened, too."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_token(token: str) -> None:
    """Check that a token can be sent in a header, and not be guessed."""
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("the token has spaces or characters outside of ASCII: expected letters and digits")
    if not _SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN:
        raise ConfigError(
            f"the token has {len(token)} characters: expected {_SHORTEST_TOKEN} to {_LONGEST_TOKEN}. This "
            "makes one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
        )
