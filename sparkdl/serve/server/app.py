"""The server's answers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pyarrow as pa
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from sparkdl.exceptions import DataError, ModelError
from sparkdl.serve.served import ServedModel
from sparkdl.serve.server import formats
from sparkdl.serve.server.batching import Batcher, Full
from sparkdl.serve.server.bodies import Bodies, Refused
from sparkdl.serve.server.formats import Limits
from sparkdl.serve.server.guard import Guard, error
from sparkdl.serve.server.meters import Meters
from sparkdl.serve.server.options import ServerOptions
from sparkdl.serve.server.versions import Versions

logger = logging.getLogger("sparkdl")
LONGEST_HEADER = 16 << 10
"""Most bytes of a request's line and header."""

_AT_ONCE = 64 << 10  # so many bytes are parsed faster than handed to another thread


@dataclass(slots=True)
class ServerParts:
    """The parts of a running server."""

    options: ServerOptions
    versions: Versions
    batcher: Batcher
    meters: Meters
    stopping: bool = False

    def app(self) -> ASGIApp:
        """Return what answers requests, behind its guard."""
        endpoints = _Endpoints(self)
        routes = [
            Route("/predict", endpoints.predict, methods=["POST"]),
            Route("/model", endpoints.model),
            Route("/metrics", endpoints.metrics),
            Route("/health", endpoints.health),
            Route("/ready", endpoints.ready),
        ]
        app = Starlette(
            routes=routes, lifespan=self._lifespan, exception_handlers={HTTPException: _elsewhere}
        )
        app.router.redirect_slashes = False
        options = self.options
        local = options.is_local and options.token is None
        return Guard(app, options.token, local=local, longest_header=LONGEST_HEADER)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        watch = self.options.watch
        watching = asyncio.create_task(self.versions.watch(watch)) if watch else None
        try:
            yield
        finally:
            if watching is not None:
                watching.cancel()
            await asyncio.to_thread(self.batcher.close)


async def _elsewhere(request: Request, failure: Exception) -> Response:
    """Answer a path that is not there, or takes another method."""
    assert isinstance(failure, HTTPException)
    code = "method" if failure.status_code == 405 else "path"
    response = error(failure.status_code, code, f"{request.method} {request.url.path}: {failure.detail}")
    response.headers.update(failure.headers or {})
    return response


def _chosen(names: str | None, model: ServedModel) -> list[str]:
    """Return the columns that a request wants: those that it names, with commas between, or all."""
    there = [output.column for output in model.outputs]
    wanted = there if names is None else names.split(",")
    for name in wanted:
        if name not in there or wanted.count(name) > 1:
            raise DataError(
                f"outputs={names!r:.200}: expected some of {','.join(there)}, each once", code="data-column"
            )
    return wanted


class _Endpoints:
    def __init__(self, service: ServerParts) -> None:
        self._service = service
        options = service.options
        self._bodies = Bodies(options.max_body, options.timeout)
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="sparkdl-parse")

    async def predict(self, request: Request) -> Response:
        """Answer rows with predictions."""
        started = time.monotonic()
        try:
            response = await self._predict(request)
        except Refused as refused:
            retry = refused.retry_after
            response = error(refused.status, refused.code, str(refused), retry_after=retry, close=True)
        except (DataError, ModelError) as failure:
            response = error(422, failure.code, str(failure))
        except Full:
            response = error(503, "busy", "too many rows are waiting", retry_after=1)
        except TimeoutError:
            response = error(503, "timeout", "the answer took too long", retry_after=1)
        except Exception:
            logger.exception("a request failed")
            response = error(500, "internal", "the server failed; its log says why")
        self._service.meters.request(response.status_code, time.monotonic() - started)
        return response

    async def _predict(self, request: Request) -> Response:
        service = self._service
        media_type = request.headers.get("content-type", "")
        if not formats.is_known(media_type):
            raise Refused(
                415,
                "media-type",
                f"Content-Type {media_type!r:.100}: send {' or '.join(formats.MEDIA_TYPES)}",
            )
        async with self._bodies.read(request) as body:
            version = service.versions.current
            model = version.model
            outputs = _chosen(request.query_params.get("outputs"), model)
            limits = Limits(tuple(model.columns), service.options.max_rows, model.vectors)

            def parse() -> tuple[object, str, formats.Write]:
                table, kind, write = formats.read(media_type, body, limits)
                return version.model.prepare(table), kind, write

            if len(body) <= _AT_ONCE:
                rows, kind, write = parse()
            else:
                rows, kind, write = await asyncio.get_running_loop().run_in_executor(self._parser, parse)
        future = asyncio.wrap_future(service.batcher.submit(version, rows))
        async with asyncio.timeout(service.options.timeout):
            table: pa.Table = await future
        table = table.select(outputs)
        kind, write = formats.accepted(request.headers.get("accept", ""), kind, write)
        headers = {"X-Model-Version": version.model.version}
        return Response(write(table), media_type=kind, headers=headers)

    async def model(self, request: Request) -> Response:
        """Say what goes in and comes out."""
        model = self._service.versions.current.model
        outputs = {output.column: output.kind for output in model.outputs}
        return JSONResponse(
            {"model": model.name, "version": model.version, "inputs": model.columns, "outputs": outputs}
        )

    async def metrics(self, request: Request) -> Response:
        """Return counters for Prometheus."""
        return Response(self._service.meters.text(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def health(self, request: Request) -> Response:
        """Say that the process answers."""
        return Response(b"ok\n", media_type="text/plain")

    async def ready(self, request: Request) -> Response:
        """Say whether it takes requests: not while it stops, nor while its queue or its bodies are full."""
        service = self._service
        full = service.batcher.rows_waiting + service.options.max_rows > service.options.max_queue
        if service.stopping or full or self._bodies.full:
            return error(503, "stopping" if service.stopping else "busy", "not ready", retry_after=1)
        return Response(b"ok\n", media_type="text/plain")
