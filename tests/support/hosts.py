"""Several hosts on one machine: a standalone cluster whose workers have networks and files of their own.

Each host is a network namespace on a bridge, with a hostname, an ``/etc/hosts``, a ``/tmp``, a ``/var/tmp``
and a ``/dev/shm`` of its own. Of the rest of the disk, which holds the environment, it can read what lies on
the file system of ``/``, and write nothing. Process ids are common. Needs root, Linux's namespaces, ``ip``
and, for rates, ``tc``.

Host 0 has the master, and driver programs unless they are told to run elsewhere; hosts 1, 2, ... have a
worker each.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark

SPARK = Path(pyspark.__path__[0])
REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("hosts_program.py")
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_clusters = itertools.count()

# Arguments: hostname, /etc/hosts, folder of the host, more commands, then folders below /tmp that all hosts
# see, "--", and the program.
_ENTER = """
set -e
name=$0 hosts=$1 root=$2 more=$3; shift 3
hostname "$name"
mount --make-rprivate /
mount --bind "$hosts" /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mkdir -p "$root/tmp" "$root/var"
while [ "$1" != -- ]; do
  mkdir -p "$root/tmp/${1#/tmp/}"; mount --bind "$1" "$root/tmp/${1#/tmp/}"; shift
done
shift
mount --bind "$root/var" /var/tmp
mount --rbind "$root/tmp" /tmp
mount -o remount,bind,ro /
mkdir -p /tmp/spark
eval "$more"
cd /tmp
exec "$@"
"""


def unavailable() -> str:
    """Return why this machine cannot have hosts; empty if it can."""
    if sys.platform != "linux" or os.geteuid():
        return "needs Linux, and root"
    if lacking := [name for name in ("ip", "tc", "unshare", "mount") if shutil.which(name) is None]:
        return f"needs the commands {', '.join(lacking)}"
    made = f"sparkdl-{os.getpid()}-try"
    tried = _run("ip", "netns", "add", made, check=False)
    if tried.returncode:
        return f"network namespaces are not allowed: {tried.stderr.strip()}"
    entered = _run("ip", "netns", "exec", made, "unshare", "-m", "-u", "true", check=False)
    _run("ip", "netns", "del", made, check=False)
    return f"namespaces of mounts are not allowed: {entered.stderr.strip()}" if entered.returncode else ""


@dataclass
class Hosts:
    """A running cluster.

    Attributes:
        folder: for hosts' files and logs.
        count: hosts beside host 0.
        cores: of each worker.
        memory: of each worker.
        unknown: hosts that host 0 has no address of.
        daemon_memory: heap of the master, and of each worker.
    """

    folder: Path
    count: int
    cores: int = 1
    memory: str = "1200m"
    unknown: tuple[int, ...] = ()
    daemon_memory: str = "256m"
    _drivers: list[subprocess.Popen[str]] = field(default_factory=list)
    _number: int = field(default_factory=_clusters.__next__)  # there are several in this process

    @property
    def url(self) -> str:
        """The master's."""
        return "spark://h0:7077"

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"10.77.{(os.getpid() + self._number) % 250 + 1}.{host + 1}"

    # -- what happens to hosts --------------------------------------------------------------------

    def cable(self, host: int, plugged: bool) -> None:
        """Pull the cable of a host, or put it back."""
        _run("ip", "link", "set", self._outside(host), "up" if plugged else "down")

    def rate(self, host: int, rate: str) -> None:
        """Let a host send and receive at most so much, such as ``100mbit``."""
        shape = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
        _run("tc", "qdisc", "replace", "dev", self._outside(host), *shape)
        _run(*self._inside(host), "tc", "qdisc", "replace", "dev", "e0", *shape)

    def mute(self, host: int, muted: bool) -> None:
        """Let a host hear from host 0, to which it cannot speak; or undo that."""
        self._blackhole(host, 0, muted)

    def deaf(self, host: int, deafened: bool) -> None:
        """Let a host speak to host 0, from which it does not hear; or undo that."""
        self._blackhole(0, host, deafened)

    def _blackhole(self, at: int, to: int, lost: bool) -> None:
        verb = "replace" if lost else "del"
        _run(*self._inside(at), "ip", "route", verb, "blackhole", f"{self.address(to)}/32")

    def pids(self, host: int) -> list[int]:
        """Return the processes of a host."""
        found = _run("ip", "netns", "pids", self._name(host), check=False).stdout.split()
        return list(map(int, found))

    def kill(self, host: int) -> None:
        """Kill all processes of a host at once."""
        for pid in self.pids(host):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def reboot(self, host: int) -> None:
        """Kill all processes of a host at once, and start its worker again."""
        self.kill(host)
        self.start_worker(host)

    # -- programs ---------------------------------------------------------------------------------

    def start_worker(self, host: int, more: str = "") -> None:
        """Start a host's worker.

        Args:
            host: which.
            more: commands that the host runs first, in its namespaces.
        """
        start = [
            str(SPARK / "bin" / "spark-class"),
            "org.apache.spark.deploy.worker.Worker",
            "--host",
            f"h{host}",
        ]
        start += ["--cores", str(self.cores), "--memory", self.memory, "--work-dir", "/tmp/work", self.url]
        self._spawn(host, f"worker{host}", start, more)

    def drive(
        self,
        *arguments: str,
        host: int = 0,
        environment: Mapping[str, str] | None = None,
        url: str | None = None,
        program: Path = PROGRAM,
    ) -> Driver:
        """Start a driver program on a host."""
        name = f"driver{len(self._drivers)}"
        command = [sys.executable, str(program), "--master", url or self.url, *arguments]
        process = self._spawn(host, name, command, environment=environment)
        self._drivers.append(process)
        return Driver(process, self.folder / f"{name}.out", self.folder / f"{name}.log")

    @contextmanager
    def connect(self) -> Iterator[str]:
        """Start a Spark Connect server on host 0, which takes all cores; yield its URL, and end it."""
        confs = {
            "spark.cores.max": str(self.count),
            "spark.executor.memory": "700m",
            "spark.ui.enabled": "false",
        }
        confs |= {"spark.connect.grpc.binding.address": "0.0.0.0", "spark.log.level": "INFO"}
        # A daemon's memory is the server's, too, and 256 MB are less than Spark takes for a driver.
        start = ["env", "SPARK_DAEMON_MEMORY=700m", str(SPARK / "bin" / "spark-submit"), "--master", self.url]
        start += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        for name, value in confs.items():
            start += ["--conf", f"{name}={value}"]
        server = self._spawn(0, "connect", [*start, "spark-internal"])
        try:
            self._wait_for("Spark Connect server started", 1, "connect")
            yield "sc://h0:15002"
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def tmp(self, host: int) -> Path:
        """Return where this machine sees the ``/tmp`` of a host."""
        return self.folder / f"h{host}" / "tmp"

    def _spawn(
        self,
        host: int,
        name: str,
        command: Sequence[str],
        more: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[str]:
        shared = [str(each) for each in (Path(sys.prefix), REPOSITORY) if str(each).startswith("/tmp/")]
        enter = ["unshare", "-m", "-u", "bash", "-c", _ENTER, f"h{host}", str(self.folder / f"hosts{host}")]
        enter += [str(self.folder / f"h{host}"), more, *shared, "--"]
        known = {k: v for k, v in os.environ.items() if k not in ("TMPDIR", "PYTHONDONTWRITEBYTECODE")}
        known |= {
            "SPARK_HOME": str(SPARK),
            "SPARK_LOCAL_IP": self.address(host),
            "SPARK_LOCAL_DIRS": "/tmp/spark",
        }
        known |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY)}
        known |= {
            "SPARK_DAEMON_JAVA_OPTS": _JAVA,
            "SPARK_SUBMIT_OPTS": _JAVA,
            "SPARK_DAEMON_MEMORY": self.daemon_memory,
        }
        known |= environment or {}
        with (
            (self.folder / f"{name}.out").open("w") as out,
            (self.folder / f"{name}.log").open("w") as log,
        ):
            return subprocess.Popen(
                [*self._inside(host), *enter, *command],
                stdout=out,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=known,
                text=True,
                start_new_session=True,
            )

    # -- up and down ------------------------------------------------------------------------------

    def up(self) -> None:
        """Make the hosts, and start master and workers."""
        everybody = range(self.count + 1)
        for host in everybody:
            lines = [f"{self.address(n)} h{n}" for n in everybody if host or n not in self.unknown]
            (self.folder / f"hosts{host}").write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
            (self.folder / f"h{host}").mkdir()
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        _run("ip", "link", "set", self._bridge, "up")
        for host in everybody:
            name, outside = self._name(host), self._outside(host)
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", outside, "type", "veth", "peer", "name", "e0", "netns", name)
            _run("ip", "link", "set", outside, "master", self._bridge, "up")
            for command in (f"addr add {self.address(host)}/24 dev e0", "link set e0 up", "link set lo up"):
                _run(*self._inside(host), "ip", *command.split())
        master = [str(SPARK / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"]
        self._spawn(0, "master", [*master, "--host", "h0", "--port", "7077", "--webui-port", "0"])
        self._wait_for("New state: ALIVE", 1)
        for host in everybody[1:]:
            self.start_worker(host)
        self._wait_for("Registering worker", self.count)

    def down(self) -> None:
        """End all processes, and delete the hosts."""
        for host in range(self.count + 1):
            self.kill(host)
            _run("ip", "netns", "del", self._name(host), check=False)
            _run("ip", "link", "del", self._outside(host), check=False)
        _run("ip", "link", "del", self._bridge, check=False)

    def _wait_for(self, text: str, times: int, name: str = "master") -> None:
        log = self.folder / f"{name}.log"
        until = time.monotonic() + 180
        while log.read_text().count(text) < times:
            if time.monotonic() > until:
                raise TimeoutError(f"{name} does not say {text!r}: {log.read_text()[-2000:]}")
            time.sleep(0.2)

    @property
    def _bridge(self) -> str:
        return f"sd{os.getpid()}n{self._number}"

    def _name(self, host: int) -> str:
        return f"sparkdl-{os.getpid()}-{self._number}-{host}"

    def _outside(self, host: int) -> str:
        return f"sd{os.getpid()}n{self._number}v{host}"

    def _inside(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self._name(host)]


@dataclass
class Driver:
    """A driver program that runs.

    Attributes:
        process: its process.
        out: file of what it prints.
        log: file of its standard error.
    """

    process: subprocess.Popen[str]
    out: Path
    log: Path

    def until(self, text: str, seconds: float = 180) -> None:
        """Wait until it has printed a text."""
        end = time.monotonic() + seconds
        while text not in self.out.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(
                    f"no {text!r} in {self.out.read_text()!r}: {self.log.read_text()[-4000:]}"
                )
            time.sleep(0.05)

    def result(self, seconds: float = 400) -> dict[str, Any]:
        """Wait for its end; return what it says in its last line."""
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"no end: {self.out.read_text()!r}: {self.log.read_text()[-4000:]}"
            ) from None
        assert status == 0, self.log.read_text()[-4000:]
        found: dict[str, Any] = json.loads(self.out.read_text().splitlines()[-1])
        return found

    def error(self, seconds: float = 400) -> str:
        """Wait for its end, which must be an error; return what it says."""
        status = self.process.wait(seconds)
        assert status == 1, (status, self.out.read_text(), self.log.read_text()[-4000:])
        return self.log.read_text()


@contextmanager
def hosts(folder: Path, count: int, **options: Any) -> Iterator[Hosts]:
    """Make so many hosts with a worker each, and delete them at the end."""
    made = Hosts(folder, count, **options)
    try:
        made.up()
        yield made
    finally:
        made.down()


def _run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done
