"""TensorBoard beside a job: a process of the user's own, on this machine only, that ends with the job."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from sparkdl.cli.arguments import say
from sparkdl.exceptions import ConfigError

PORT = 6006


@contextmanager
def board(logdir: str) -> Iterator[str]:
    """Show the summaries in a folder while the context lasts; yields the address."""
    if find_spec("tensorboard") is None:
        raise ConfigError("--tensorboard: pip install 'sparkdl[tensorboard]'", code="config-package")
    port = free_port(PORT)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", logdir, "--host", "localhost"]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the job
    )
    address = f"http://localhost:{port}/"
    try:
        say(f"TensorBoard shows {logdir} at {address}")
        yield address
    finally:
        process.terminate()
        process.wait()


def free_port(wanted: int) -> int:
    """Return a port on localhost that is free: the one that is wanted, else any."""
    with socket.socket() as probe:
        try:
            probe.bind(("localhost", wanted))
        except OSError:
            probe.bind(("localhost", 0))
        port: int = probe.getsockname()[1]
        return port
