"""The file system of a scan, and what its ``storage_options`` say: credentials and endpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from sparkdl import redaction
from sparkdl.exceptions import ConfigError, DataError

Storage = Mapping[str, str]
"""Options of an object store, by their names in capitals."""

NO_STORAGE: Storage = MappingProxyType({})

S3 = ("s3", "s3a", "s3n")
"""Schemes of URLs of S3: pyarrow's own, and Hadoop's."""

_GCS = ("gs", "gcs")
_GCS_RETRIES = "?retry_limit_seconds=60"  # by default it goes on for 15 minutes without credentials

_ARGUMENTS = {
    "AWS_ACCESS_KEY_ID": "access_key",
    "AWS_SECRET_ACCESS_KEY": "secret_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_REGION": "region",
}
_ENDPOINT = "AWS_ENDPOINT_URL"
_TIMEOUT = "TIMEOUT"
_ICEBERG = {
    "AWS_ACCESS_KEY_ID": "s3.access-key-id",
    "AWS_SECRET_ACCESS_KEY": "s3.secret-access-key",
    "AWS_SESSION_TOKEN": "s3.session-token",
    "AWS_REGION": "s3.region",
    _ENDPOINT: "s3.endpoint",
    _TIMEOUT: "s3.request-timeout",
}
_NAMES = (*_ARGUMENTS, _ENDPOINT, _TIMEOUT)


def checked_storage(given: Any, paths: list[str]) -> Storage:
    """Return a caller's options, and check that paths have no credentials."""
    for path in paths:
        if redaction.text(path) != path:
            raise ConfigError(
                f"{redaction.text(path)}: a path with credentials, which would be seen in errors and pages; "
                "give them as storage_options, or in the environment of the executors"
            )
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"storage_options: expected a dict, got a {type(given).__name__}")
    if given and any(urlsplit(path).scheme not in S3 for path in paths):
        raise ConfigError(
            f"storage_options are for s3:// URLs, not for {paths[0]}: other file systems take what the "
            "executors have in their environment"
        )
    found = {}
    for name, value in given.items():
        key = str(name).upper()
        if key not in _NAMES:
            raise ConfigError(
                f"storage_options: {name!r:.50} is not known; expected some of {', '.join(_NAMES)}"
            )
        if not isinstance(value, str):
            raise ConfigError(f"storage_options: {key}: expected a text, got a {type(value).__name__}")
        found[key] = value
    if ("AWS_ACCESS_KEY_ID" in found) != ("AWS_SECRET_ACCESS_KEY" in found):
        raise ConfigError("storage_options: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY together")
    endpoint = found.get(_ENDPOINT)
    if endpoint is not None and urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(
            f"storage_options: {_ENDPOINT}: expected a URL that begins with http:// or https://"
        )
    try:
        seconds = float(found.get(_TIMEOUT, 1))
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f"storage_options: {_TIMEOUT}: expected a number of seconds, such as '10'")
    return found


def is_url(path: str) -> bool:
    """Return whether a path is a URL."""
    return "://" in path or path.startswith("file:/")


def file_system(path: str, storage: Storage) -> tuple[Any, str]:
    """Return the file system of a path, and the path as that knows it; called in tasks."""
    from pyarrow import fs

    if not is_url(path):
        return fs.LocalFileSystem(), path
    parts = urlsplit(path)
    try:
        if parts.scheme in S3 and storage:
            return _s3(storage, parts.netloc), f"{parts.netloc}{parts.path}".rstrip("/")
        scheme = "s3" if parts.scheme in S3 else parts.scheme
        limit = _GCS_RETRIES if scheme in _GCS else ""
        found: tuple[Any, str] = fs.FileSystem.from_uri(path.replace(parts.scheme, scheme, 1) + limit)
    except Exception as error:
        raise DataError(
            f"{path}: pyarrow cannot read it: {error}. Read it by Spark, for Dataset.from_dataframe",
            code="data-source",
        ) from error
    return found


def of_delta(storage: Storage) -> dict[str, str]:
    """Return options as deltalake takes them."""
    more = {"AWS_ALLOW_HTTP": "true"} if storage.get(_ENDPOINT, "").startswith("http:") else {}
    timeout = {"timeout": f"{float(storage[_TIMEOUT]):g}s"} if _TIMEOUT in storage else {}
    return {name: value for name, value in storage.items() if name != _TIMEOUT} | more | timeout


def of_iceberg(storage: Storage) -> dict[str, str]:
    """Return options as pyiceberg takes them."""
    return {own: storage[name] for name, own in _ICEBERG.items() if name in storage}


def _s3(storage: Storage, bucket: str) -> Any:
    from pyarrow import fs

    arguments: dict[str, Any] = {own: storage[name] for name, own in _ARGUMENTS.items() if name in storage}
    if _ENDPOINT in storage:
        endpoint = urlsplit(storage[_ENDPOINT])
        arguments |= {"scheme": endpoint.scheme, "endpoint_override": f"{endpoint.netloc}{endpoint.path}"}
    elif "region" not in arguments:
        arguments["region"] = fs.resolve_s3_region(bucket)
    if _TIMEOUT in storage:
        arguments |= dict.fromkeys(("connect_timeout", "request_timeout"), float(storage[_TIMEOUT]))
    return fs.S3FileSystem(**arguments)
