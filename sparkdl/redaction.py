"""Texts without the credentials in their URLs, Spark's confs without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "*********(redacted)"
"""What stands for a secret; Spark's own words."""

REGEX = "spark.redaction.regex"
"""Conf with a pattern of further secrets, for names and values."""

# Spark's default, and names that it does not know, such as Azure's.
_NAMES = (
    r"secret|password|passwd|passphrase|token|credential|access[._-]?key|account[._-]?key|api[._-]?key|"
    r"private[._-]?key|signature"
)
_SECRET = re.compile(_NAMES, re.IGNORECASE)
_USER = re.compile(
    r"(:/{1,2})(?:"  # pathlib makes one slash of two
    r"[^\s/:@?#'\"<>]*:[^\s/'\"<>]*@"  # user:password@
    r"|[^\s/:@?#'\"<>\[]+:(?!\d+/|//)[^\s@'\"<>]*@"  # a password with slashes, as AWS has them
    r")"
)
_WEB_USER = re.compile(r"(https?://)[^\s/:@?#'\"<>]+@", re.IGNORECASE)  # a token alone
_PARAMETER = re.compile(
    rf"([?&;](?:sig|[^\s=&;'\"]{{0,64}}(?:{_NAMES})[^\s=&;'\"]{{0,64}})=)[^\s&;'\"]+", re.IGNORECASE
)


def text(shown: str) -> str:
    """Return a text without the credentials in its URLs.

    Examples:
        >>> text("cannot open s3://AKIA:wJalr/Utn@bucket/run")
        'cannot open s3://***@bucket/run'
        >>> text("https://account.blob.core.windows.net/c?sv=2024&sig=aGk%3D")
        'https://account.blob.core.windows.net/c?sv=2024&sig=***'
    """
    if ":/" not in shown:
        return shown
    shown = _WEB_USER.sub(r"\1***@", _USER.sub(r"\1***@", shown))
    return _PARAMETER.sub(r"\1***", shown)


def confs(found: Mapping[str, str]) -> dict[str, str]:
    """Return Spark confs as they may be shown: as Spark does, by names and values that a pattern finds.

    ``spark.redaction.regex`` among them finds further ones; if Python cannot read it, all are hidden.
    """
    patterns = [_SECRET]
    try:
        patterns += [re.compile(found[REGEX])] if found.get(REGEX) else []
    except re.error:
        return dict.fromkeys(found, HIDDEN)
    return {
        name: HIDDEN if any(p.search(name) or p.search(value) for p in patterns) else text(value)
        for name, value in found.items()
    }


def assignments(shown: str) -> str:
    """Return a text, such as a JVM's options, without the values of secrets in ``name=value``."""

    def hide(word: re.Match[str]) -> str:
        name, _, value = word[0].partition("=")
        return f"{name}={HIDDEN}" if value and _SECRET.search(name) else word[0]

    return text(re.sub(r"\S+", hide, shown))


def arguments(given: Iterable[str]) -> Iterator[str]:
    """Yield a program's arguments as they may be shown: ``--token=...``, ``--token ...``."""
    secret = False
    for argument in given:
        yield HIDDEN if secret and not argument.startswith("-") else assignments(argument)
        secret = argument.startswith("-") and "=" not in argument and bool(_SECRET.search(argument))
