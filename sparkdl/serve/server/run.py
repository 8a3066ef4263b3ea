"""Starts and stops a server."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import ssl
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from sparkdl.exceptions import ConfigError
from sparkdl.saved.trust import Entry
from sparkdl.serve.server.app import LONGEST_HEADER, ServerParts
from sparkdl.serve.server.batching import Batcher
from sparkdl.serve.server.connections import connections
from sparkdl.serve.server.meters import Meters
from sparkdl.serve.server.options import ServerOptions
from sparkdl.serve.server.sparing import Sparing
from sparkdl.serve.server.versions import Versions

logger = logging.getLogger("sparkdl")
_HEADER_SECONDS = 10.0
_IDLE_SECONDS = 75
_BACKLOG = 512
_AT_ONCE = 32
"""So many connections are accepted before any of them is read, and the oldest are closed for them."""
_OTHER_FILES = 256


class Server:
    """A server of one saved model; raises SparkdlError if there is no model that can be read."""

    def __init__(
        self,
        path: str,
        options: ServerOptions,
        *,
        trust: Iterable[Entry] = (),
        quantize: bool | None = None,
    ) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        copies = options.copies or cores
        meters = Meters(lambda: batcher.rows_waiting)
        versions = Versions(path, copies=copies, trust=trust, quantize=quantize, note=meters.reload)
        meters.serves(versions.current.model.version)
        batcher = Batcher(
            threads=copies,
            torch_threads=max(1, cores // copies),
            max_rows=options.max_rows,
            max_queue=options.max_queue,
            wait=options.wait,
            observe=meters.forward,
        )
        self.service = ServerParts(options, versions, batcher, meters)
        self._uvicorn = _Uvicorn(self.service, _config(self.service))

    async def serve(self) -> None:
        """Serve until a signal, or :meth:`stop`; then finish what was accepted.

        Raises ConfigError if the address cannot be listened at.
        """
        try:
            await self._uvicorn.serve()
        except SystemExit as end:  # uvicorn has logged why
            address = f"{self.service.options.host}:{self.service.options.port}"
            raise ConfigError(f"cannot listen at {address}: is the port taken?") from end
        finally:
            await asyncio.to_thread(self.service.batcher.close)

    def stop(self) -> None:
        """Take no more connections, and end when all requests are answered; from any thread."""
        self._uvicorn.should_exit = True

    @property
    def started(self) -> bool:
        """Whether it listens."""
        return self._uvicorn.started

    @property
    def address(self) -> str:
        """Where it listens, once it does."""
        options = self.service.options
        port = self._uvicorn.servers[0].sockets[0].getsockname()[1]
        host = f"[{options.host}]" if ":" in options.host else options.host
        return f"{'https' if options.certificate else 'http'}://{host}:{port}"


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which knows SIGHUP and says when it stops."""

    def __init__(self, service: ServerParts, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        if self.started:
            for listener in (socket for server in self.servers for socket in server.sockets):
                # asyncio has one number for those that wait and those it accepts at once.
                with listener.dup() as same:
                    same.listen(_BACKLOG)
            options, model = self._service.options, self._service.versions.current.model
            logger.info(
                "serving %s, version %s, at %s:%s, %s",
                model.name,
                model.version,
                options.host,
                self.servers[0].sockets[0].getsockname()[1],
                "for clients with the token" if options.token else "for anyone who can connect",
            )

    async def shutdown(self, sockets: Any = None) -> None:
        self._service.stopping = True
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Add SIGHUP to uvicorn's signals: it reads the model again."""
        with super().capture_signals():
            loop = asyncio.get_running_loop()
            tasks: set[asyncio.Task[bool]] = set()

            def reload() -> None:
                task = loop.create_task(self._service.versions.reload())
                tasks.add(task)
                task.add_done_callback(tasks.discard)

            try:
                loop.add_signal_handler(signal.SIGHUP, reload)
            except (AttributeError, NotImplementedError, RuntimeError, ValueError):
                yield  # Windows, or not the main thread
                return
            try:
                yield
            finally:
                loop.remove_signal_handler(signal.SIGHUP)
                self._captured_signals.clear()  # it has ended as it should: uvicorn would raise them again


def run(server: Server) -> None:
    """Serve in this thread, and log to stderr, until SIGTERM or Ctrl-C."""
    if not logger.hasHandlers():
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    for name in ("sparkdl", "asyncio", "uvicorn.error"):  # strangers can cause lines of these
        logging.getLogger(name).addFilter(Sparing())
    options = server.service.options
    _have_files(options.max_connections + 2 * _AT_ONCE + _OTHER_FILES)
    gc.collect()
    gc.freeze()  # torch's objects stay: no collection need look at them while requests are parsed
    asyncio.run(server.serve())


def _config(service: ServerParts) -> uvicorn.Config:
    options = service.options
    return uvicorn.Config(
        service.app(),
        host=options.host,
        port=options.port,
        http=connections(options.max_connections, _HEADER_SECONDS, _tls(options)),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=min(_AT_ONCE, max(8, options.max_connections // 4)),
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=int(options.timeout) + 5,
        h11_max_incomplete_event_size=LONGEST_HEADER,
    )


def _tls(options: ServerOptions) -> ssl.SSLContext | None:
    """Return the context of TLS, which connections begin themselves."""
    if options.certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(
            f"certificate={options.certificate!r} and key={options.key!r} cannot be used: {error}"
        ) from error
    return context


def _have_files(needed: int) -> None:
    """Let this process open as many files as its connections need."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise ConfigError(
                f"this process may open {hard} files: a server needs {needed} for its connections. "
                "Raise the limit: ulimit -n"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
