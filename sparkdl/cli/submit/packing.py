"""Files that travel with a job: the script's modules, and a Python environment."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from sparkdl.cli.arguments import command_error
from sparkdl.exceptions import ConfigError
from sparkdl.wire import private

ARCHIVES = (".tar.gz", ".tgz", ".tar", ".zip")
UNPACKED = "environment"
"""Folder that an archive is unpacked to, in an executor's working directory."""

INTERPRETER = f"./{UNPACKED}/bin/python"
_CONTENT = 2  # changes with what goes into an archive, so that older ones are packed again


def zip_modules(folder: Path, target: Path) -> None:
    """Write the Python files under a folder to a zip file that can be imported from.

    Hidden folders, caches and virtual environments stay out, and so do links that lead nowhere or in circles.
    """
    try:
        # A zip file has no times before 1980: those of some file systems and containers are of 1970.
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for file in sorted(_sources(folder, ())):
                archive.write(file, file.relative_to(folder))
    except OSError as error:
        raise command_error(f"--modules: {folder} cannot be packed: {error}") from error


def _sources(folder: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    """Yield the Python files under a folder, except through links to the folders above."""
    real = folder.resolve()
    if real in above:
        return
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name == "__pycache__":
            continue
        if entry.is_dir():
            if not (entry / "pyvenv.cfg").exists():
                yield from _sources(entry, (*above, real))
        elif entry.suffix == ".py" and entry.is_file():
            yield entry


def check_archive(env: str) -> None:
    """Look at what is given as environment, unless it is an address, which is left to Spark.

    Raises ConfigError if it is not there, or is no archive of a kind that Spark unpacks.
    """
    if "://" in env:
        return
    path = Path(env)
    if path.is_dir():
        raise _error(f"env {env!r} is a folder: pack it first, or use --pack-env in that environment")
    if not path.is_file():
        raise _error(f"env {env!r} is not there: expected an archive made by --pack-env or conda-pack")
    if not path.name.endswith(ARCHIVES):
        raise _error(f"env {env!r}: Spark unpacks {', '.join(ARCHIVES)}")
    if not (tarfile.is_tarfile(path) or zipfile.is_zipfile(path)):
        raise _error(f"env {env!r} is not an archive, or is damaged: pack it again")


def check_name(path: str) -> None:
    """Check that Spark takes a path in a list of files for one file.

    Raises ConfigError if it has a comma, which separates files, or ``#``, which begins the name of a folder.
    """
    for character in (c for c in ",#" if c in path):
        raise _error(
            f"{path!r} has {character!r} in its name, where Spark ends the path of a file: rename it, or "
            "choose another folder (XDG_CACHE_HOME for --pack-env, TMPDIR for --modules)"
        )


def packed_path(prefix: Path) -> Path:
    """Return where an environment's archive belongs: its name changes with what is installed.

    Raises ConfigError if it is not a virtual environment, or has editable packages.
    """
    if (prefix / "conda-meta").is_dir():
        raise _error(
            f"pack-env: {prefix} is a conda environment: conda pack -o environment.tar.gz, and give that "
            "with --env"
        )
    if not (prefix / "pyvenv.cfg").is_file():
        raise _error(f"pack-env: {prefix} is not a virtual environment: make one with python -m venv")
    digest = hashlib.sha256(f"{_CONTENT} {sys.version}".encode())
    editable, unlisted = [], []
    for package in sorted(_packages(prefix), key=lambda package: package.name):
        if package.files is None:
            unlisted.append(package.name)
        digest.update(f"{package.name} {package.version} {_installed_at(package)}\n".encode())
        if '"editable": true' in (package.read_text("direct_url.json") or ""):
            editable.append(package.name)
    if editable:
        raise _error(
            f"pack-env: {', '.join(editable)} {'is' if len(editable) == 1 else 'are'} installed in editable "
            "mode, outside of the environment: pip install it without -e"
        )
    if unlisted:
        raise _error(
            f"pack-env: {', '.join(unlisted)} {'has' if len(unlisted) == 1 else 'have'} no list of files "
            "(RECORD), so what belongs to it is not known: install it again with pip"
        )
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    family = hashlib.sha256(str(prefix).encode()).hexdigest()[:8]
    return cache / "sparkdl" / "environments" / f"{family}-{digest.hexdigest()[:16]}.tar.gz"


def _packages(prefix: Path) -> Iterator[metadata.Distribution]:
    return iter(metadata.distributions(path=list(map(str, prefix.glob("lib/python3*/site-packages")))))


def _installed_at(package: metadata.Distribution) -> float:
    """Return a time that changes when the package is installed again."""
    files = [Path(str(package.locate_file(file))) for file in package.files or () if file.name == "RECORD"]
    return files[0].stat().st_mtime if files and files[0].exists() else 0.0


def pack(prefix: Path, target: Path) -> None:
    """Write an environment to an archive; older ones of the same environment are deleted.

    Only what was installed goes there: the interpreter, and the files that packages list as theirs. Whatever
    else lies in the folder (``.env``, ``pip.conf``, ``.git``, a job file) stays. Spark's jars stay, too:
    executors have those of their own Spark.

    A virtual environment can be moved as long as its interpreter is called by path: its own
    ``pyvenv.cfg`` says where Python is. Scripts in ``bin`` keep their old first line, and are not needed.
    """
    private.make_folder(target.parent)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        # Fast compression: most of torch is machine code that better one hardly makes smaller.
        with (
            open(draft, "xb", opener=private.opener) as raw,
            gzip.open(raw, "wb", compresslevel=1) as file,
            tarfile.open(fileobj=file, mode="w") as archive,
        ):
            for name in _installed(prefix):
                archive.add(prefix / name, name, recursive=False)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    for old in target.parent.glob(f"{target.name.split('-')[0]}-*"):
        if old != target:
            old.unlink(missing_ok=True)


def _installed(prefix: Path) -> list[str]:
    """Return the files that were installed, relative to the environment's folder."""
    root = os.path.abspath(prefix)
    own = [prefix / "pyvenv.cfg", prefix / "lib64", *prefix.glob("bin/python*")]
    found = {os.path.relpath(file, root) for file in own if os.path.lexists(file)}
    for package in _packages(prefix):
        for listed in package.files or ():
            # Not resolved: a link is packed as a link.
            file = os.path.abspath(str(package.locate_file(listed)))
            name = os.path.relpath(file, root)
            if not name.startswith("..") and "/pyspark/jars/" not in name and os.path.lexists(file):
                found.add(name)
    return sorted(found)


def _error(message: str) -> ConfigError:
    return ConfigError(message, code="config-environment")
