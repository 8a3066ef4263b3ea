"""``sparkdl serve PATH``: predictions of a saved model over HTTP."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from typing import Any

from sparkdl.exceptions import ConfigError

_EXAMPLES = """\
examples:
  sparkdl serve runs/first/model
  sparkdl serve s3://models/churn --port 9000 --watch 30
  sparkdl serve model --host 0.0.0.0 --token-file token --certificate cert.pem --key key.pem

  curl localhost:8000/predict -H 'Content-Type: application/json' -d '{"rows": [{"age": 39, "job": "cook"}]}'

SIGHUP reads the model again, and no request is lost. SIGTERM and Ctrl-C answer what was accepted, and end.
"""
_PACKAGES = ("uvicorn", "starlette", "prometheus_client")


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "serve",
        help="answer requests for predictions over HTTP",
        description="Serve a saved model over HTTP, in JSON and Arrow, without Spark.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("path", help="where model.save wrote it: a folder, or an address that fsspec opens")
    add("--host", default="127.0.0.1", help="address to listen at (127.0.0.1, this machine alone)")
    add("--port", type=int, default=8000, help="port, 0 for any that is free (8000)")
    add("--token-file", metavar="FILE", help="what clients must send; mode 0600 (or set SPARKDL_SERVE_TOKEN)")
    add("--no-token", action="store_true", help="let anyone in who can connect, from other machines too")
    add("--certificate", metavar="FILE", help="certificate chain, for https")
    add("--key", metavar="FILE", help="key of the certificate")
    add("--copies", type=int, metavar="N", help="passes at the same time; weights are shared (one per core)")
    add("--max-rows", type=int, default=1024, metavar="N", help="rows of a pass, and of a request (1024)")
    add("--wait-ms", type=float, default=0.0, metavar="MS", help="how long a row may wait for others (0)")
    add("--max-queue", type=int, default=8192, metavar="N", help="rows that may wait for a pass (8192)")
    add("--max-body-mib", type=float, default=16, metavar="MIB", help="size of a request (16)")
    add("--timeout", type=float, default=30.0, metavar="S", help="seconds for a request (30)")
    add("--watch", type=float, default=0.0, metavar="S", help="look for a new version every S seconds")
    add("--quantize", action="store_true", default=None, help="compute with 8-bit integers")
    add("--trust", action="append", default=[], metavar="NAME", help="module that the model may name")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"sparkdl serve needs {', '.join(missing)}: pip install 'sparkdl[serve]'", code="config-package"
        )
    from sparkdl.serve.server.options import ServerOptions, find_token
    from sparkdl.serve.server.run import Server, run

    options = ServerOptions(
        host=args.host,
        port=args.port,
        token=find_token(args.token_file),
        open=args.no_token,
        certificate=args.certificate,
        key=args.key,
        copies=args.copies,
        max_rows=args.max_rows,
        wait=args.wait_ms / 1000,
        max_queue=args.max_queue,
        max_body=int(args.max_body_mib * (1 << 20)),
        timeout=args.timeout,
        watch=args.watch,
    )
    run(Server(args.path, options, trust=args.trust, quantize=args.quantize))
    return 0
