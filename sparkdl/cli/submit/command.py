"""``sparkdl submit``: spark-submit with this design's confs, the user's modules and an environment."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any
from uuid import uuid4

from sparkdl import daemon, redaction
from sparkdl._spark import logs
from sparkdl.attempts import VARIABLE, Notes
from sparkdl.cli import properties
from sparkdl.cli.arguments import add_conf, command_error, say
from sparkdl.cli.board import board
from sparkdl.cli.clusters import is_one_process, kind_of, spark_home
from sparkdl.cli.process import Child, forwarding
from sparkdl.cli.submit import packing, resources, retries
from sparkdl.cli.submit.job import DEPLOY_MODES, Job, read_job_file
from sparkdl.exceptions import ConfigError

# By kind of cluster: prefix of the confs for the driver's variables; conf by which spark-submit waits.
_IN_CLUSTER = {
    "yarn": ("spark.yarn.appMasterEnv", "spark.yarn.submit.waitAppCompletion"),
    "kubernetes": ("spark.kubernetes.driverEnv", "spark.kubernetes.submission.waitAppCompletion"),
}

_EXAMPLES = """\
examples:
  sparkdl submit --master 'local[2]' train.py --epochs 3
  sparkdl submit --master spark://head:7077 --pack-env train.py
  sparkdl submit --master yarn --env environment.tar.gz --conf spark.executor.instances=8 train.py
  sparkdl submit --conf-file job.toml --tensorboard runs
  sparkdl submit --conf-file job.toml --retries 5
  sparkdl submit --conf-file job.toml --dry-run

The job file holds the same by name (master, script, args, name, deploy-mode, env, pack-env, modules,
tensorboard, log-level, retries, retry-delay, retry-folder) and the tables [resources] and [conf]; the
command line wins. The exit status is spark-submit's.
Secrets belong in the job file: all users of this machine can see the command line.
"""


def register(subparsers: Any) -> None:
    """Add the command's parser."""
    parser = subparsers.add_parser(
        "submit",
        help="run a script on a cluster, with its code, its environment and the right confs",
        description="Run a Python script with the spark-submit of the installed Spark.",
        usage="sparkdl submit [options] script.py [arguments]",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--master", help="Spark master: local[N], spark://..., yarn, k8s://...")
    parser.add_argument("--conf-file", metavar="job.toml", type=Path, help="job file in TOML")
    add_conf(parser)
    parser.add_argument("--name", help="name of the application in Spark's UI")
    parser.add_argument("--deploy-mode", choices=DEPLOY_MODES, help="where the driver runs (client: here)")
    parser.add_argument("--env", metavar="FILE", help="packed environment to ship to the executors")
    parser.add_argument(
        "--pack-env",
        action=argparse.BooleanOptionalAction,
        help="pack this environment, if it changed, and ship it",
    )
    parser.add_argument(
        "--modules",
        action=argparse.BooleanOptionalAction,
        help="ship the Python files of the script's folder",
    )
    parser.add_argument(
        "--tensorboard", metavar="LOGDIR", help="show the summaries in LOGDIR on localhost while the job runs"
    )
    parser.add_argument(
        "--log-level", metavar="LEVEL", help=f"{', '.join(logs.LEVELS).lower()} (warn): the driver's log"
    )
    parser.add_argument(
        "--retries",
        type=int,
        metavar="N",
        help="start a driver that died again, from its last checkpoint; at most N times without a new one",
    )
    parser.add_argument(
        "--retry-delay",
        type=float,
        metavar="SECONDS",
        help="before the first retry (10); it doubles each time",
    )
    parser.add_argument(
        "--retry-folder", metavar="URL", help="where drivers note how far they are; for cluster mode"
    )
    parser.add_argument("--dry-run", action="store_true", help="print what would be run")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the script and its arguments")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit the job, or print what would be run, and return the exit status."""
    job = job_of(args)
    if args.dry_run:
        print(plan(job, Path("<temporary folder>")).shown())
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sparkdl-submit-")))
        submission = plan(job, folder)
        submission.prepare()
        if job.tensorboard is not None:
            stack.enter_context(board(job.tensorboard))
        if not job.retries:
            return submission.run(stack.enter_context(forwarding()))
        child = stack.enter_context(forwarding(alone=True))
        return retries.supervise(
            lambda: submission.run(child),
            Notes(submission.notes),
            retries=job.retries,
            first_delay=job.retry_delay,
            pause=child.pause,
            stopped=lambda: child.stopped,
            remote=submission.remote,
        )


def job_of(args: argparse.Namespace) -> Job:
    """Join job file and command line."""
    found = read_job_file(args.conf_file) if args.conf_file is not None else {}
    for attribute in fields(Job):
        value = getattr(args, attribute.name, None)
        if value is not None and attribute.name not in ("conf", "args", "resources"):
            found[attribute.name] = value
    if args.env is not None and args.pack_env is None:
        found.pop("pack_env", None)
    if args.pack_env and args.env is None:
        found.pop("env", None)
    for name in ("retry_folder", "retry_delay"):
        if name in found and "retries" not in found:
            option = name.replace("_", "-")
            raise command_error(f"{option} is given without retries: say how many, or leave {option} out")
    found["conf"] = {**found.get("conf", {}), **dict(args.conf)}
    if args.command and args.command[0] != "--":
        found |= {"script": args.command[0], "args": tuple(args.command[1:])}
    elif args.command:
        found["args"] = tuple(args.command[1:])
    found.setdefault("master", found["conf"].get("spark.master"))
    for name, how in (("master", "--master"), ("script", "it after the options")):
        if found.get(name) is None:
            raise command_error(f"no {name}: give {how}, or {name} = ... in the job file")
    return Job(**found)


@dataclass(frozen=True, slots=True)
class Submission:
    """The job to run."""

    command: tuple[str, ...]  # spark-submit, its options, the script and its arguments
    options: int  # where the script is in it
    confs: dict[str, str]  # what :attr:`properties` holds
    properties: Path  # file of confs that the command names. Other users of a machine see command lines.
    environment: dict[str, str]  # variables it gets beside those of this process
    # folder whose modules go to a zip file, and that file; ``None`` without ``modules``
    modules: tuple[Path, Path] | None
    # archive that the environment of this process is packed to; ``None`` without ``pack_env``
    packed: Path | None
    notes: str  # folder in which the drivers of a job with retries tell of themselves
    remote: bool  # whether the driver runs in the cluster

    def prepare(self) -> None:
        """Write the confs and the files that travel with the job."""
        if self.modules is not None:
            packing.zip_modules(*self.modules)
        if self.packed is not None and not self.packed.exists():
            say(f"packing {sys.prefix}, which may take minutes, to {self.packed}")
            packing.pack(Path(sys.prefix), self.packed)
        properties.write(self.properties, self.confs)

    def run(self, child: Child) -> int:
        """Run spark-submit and return its exit status, 128 + n if signal n ended it."""
        # A driver in the cluster hears no Ctrl-C: spark-submit, which waits for it, ends.
        return child.run(self.command, self.environment, ignores_interrupts=not self.remote)

    def shown(self) -> str:
        """Return the command as a shell takes it, below its confs; without secrets."""
        confs = redaction.confs(self.confs)
        lines = [f"{name}={shlex.quote(redaction.assignments(v))}" for name, v in self.environment.items()]
        lines.append(shlex.quote(self.command[0]))
        for part in self.command[1 : self.options]:
            if part.startswith("--"):
                lines.append(part)
            else:
                lines[-1] += f" {shlex.quote(redaction.text(part))}"
        lines.append(shlex.join(redaction.arguments(self.command[self.options :])))
        remarks = [f"# {self.properties} holds:"]
        remarks += [f"#   {name} = {_line(confs[name])}" for name in sorted(confs)]
        return "\n".join(remarks) + "\n" + " \\\n    ".join(lines)


def plan(job: Job, folder: Path) -> Submission:
    """Say what a job means for spark-submit; nothing is written."""
    # With a file of confs spark-submit does not read the installation's own one.
    conf = resources.job_confs(job.resources, job.master, job.conf)
    if job.deploy_mode is not None:
        conf["spark.submit.deployMode"] = job.deploy_mode
    packed = packing.packed_path(Path(sys.prefix)) if job.pack_env else None
    env = str(packed) if packed is not None else job.env
    if env is not None:
        if is_one_process(job.master):
            raise ConfigError(
                f"--master {job.master}: tasks run here, so there is no executor to ship an environment to: "
                "leave env and pack-env out (--no-pack-env)",
                code="config-environment",
            )
        if packed is None:
            packing.check_archive(env)
        else:
            conf.setdefault("spark.python.daemon.module", daemon.NAME)
        packing.check_name(env)
        archives = [conf["spark.archives"]] if conf.get("spark.archives") else []
        conf["spark.archives"] = ",".join([*archives, f"{env}#{packing.UNPACKED}"])
    conf |= _interpreters(job, conf, env is not None)
    modules = None
    if job.modules:
        modules = (Path(job.script).resolve().parent, folder / "modules.zip")
        packing.check_name(str(modules[1]))
        files = [conf["spark.submit.pyFiles"]] if conf.get("spark.submit.pyFiles") else []
        conf["spark.submit.pyFiles"] = ",".join([*files, str(modules[1])])
    notes, remote = _notes(job, conf, folder), conf.get("spark.submit.deployMode") == "cluster"
    if remote and job.log_level is not None and (kind := kind_of(job.master)) in _IN_CLUSTER:
        conf[f"{_IN_CLUSTER[kind][0]}.{logs.VARIABLE}"] = job.log_level.upper()
    command = [str(spark_home() / "bin" / "spark-submit"), "--master", job.master]
    if job.name is not None:
        command += ["--name", job.name]
    file = folder / "spark.properties"
    command += ["--properties-file", str(file)]
    whole = (*command, job.script, *job.args)
    variables = _variables(job) | ({VARIABLE: notes} if job.retries and not remote else {})
    return Submission(whole, len(command), conf, file, variables, modules, packed, notes, remote)


def _notes(job: Job, conf: dict[str, str], folder: Path) -> str:
    """Return where drivers tell of themselves, and add the confs by which they learn of it."""
    # A folder of its own: the next submission is another job, which begins as its script says.
    notes = f"{job.retry_folder or folder / 'attempts'}/{uuid4().hex}"
    if not job.retries:
        return notes
    kind = kind_of(job.master)
    if conf.get("spark.submit.deployMode") != "cluster":
        if kind == "local":  # tasks run in the JVM that has the driver's variables
            conf[f"spark.executorEnv.{VARIABLE}"] = ""
        return notes
    if kind not in _IN_CLUSTER:
        raise command_error(
            f"retries: Spark runs no Python driver in cluster mode with --master {job.master}"
        )
    if job.retry_folder is None or "://" not in job.retry_folder:
        raise command_error(
            f"retries in cluster mode: retry-folder is {job.retry_folder!r}; expected the URL of a folder "
            "that this machine and the driver's reach, such as s3://bucket/attempts"
        )
    variables, wait = _IN_CLUSTER[kind]
    if conf.get(wait, "true") != "true":
        raise command_error(
            f"retries: {wait} is {conf[wait]!r}; expected 'true', for somebody must see the driver end"
        )
    conf[f"{variables}.{VARIABLE}"] = notes
    if kind == "yarn":
        conf.setdefault("spark.yarn.maxAppAttempts", "1")  # YARN would try errors of the script again, too
    return notes


def _interpreters(job: Job, conf: dict[str, str], shipped: bool) -> dict[str, str]:
    """Return the confs that say which Python runs the driver and the tasks."""
    executors, driver = "spark.pyspark.python", "spark.pyspark.driver.python"
    here = conf.get("spark.submit.deployMode", DEPLOY_MODES[0]) == DEPLOY_MODES[0]
    found = {}
    if shipped:
        found[executors] = packing.INTERPRETER
    elif executors not in conf and "PYSPARK_PYTHON" not in os.environ and here:
        found[executors] = sys.executable
        if not job.master.startswith("local"):
            say(
                f"executors run {sys.executable}: it must be there on each machine; --pack-env ships this one"
            )
    if here and driver not in conf:
        found[driver] = sys.executable
    return found


def _variables(job: Job) -> dict[str, str]:
    """Return the variables that make the driver's log quiet, or as rich as is wanted."""
    logs.level()  # a value that is none is an error here rather than in the job
    found = {"SPARK_HOME": str(spark_home()), "SPARK_SUBMIT_OPTS": logs.jvm_options()}
    if job.log_level is not None:
        found[logs.VARIABLE] = job.log_level.upper()
    return found


def _line(value: str) -> str:
    """Return a conf's value on one line."""
    return value if value.isprintable() else ascii(value)
