"""Files of Spark confs, read and written as Java's ``Properties`` does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from sparkdl.wire import private

_LINES = re.compile(r"\r\n|\r|\n")
_BLANKS = " \t\f"
_PAIR = re.compile(r"(?P<name>(?:[^\\\s=:]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.?))", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_SPECIAL = re.compile(r"[\\=:#! \t\n\r\f]|[^\x20-\x7e]")


def read(path: Path) -> dict[str, str]:
    """Read a file: names, blanks or ``=`` or ``:``, values; comments begin with ``#`` or ``!``.

    A backslash at the end of a line joins it with the next one, another one escapes the character after it.
    """
    found = {}
    whole = ""
    for line in _LINES.split(path.read_text(encoding="utf-8", errors="replace") + "\n"):
        line = line.lstrip(_BLANKS)
        if not whole and line.startswith(("#", "!")):
            continue
        whole += line
        if (len(whole) - len(whole.rstrip("\\"))) % 2:
            whole = whole[:-1]
            continue
        match = _PAIR.fullmatch(whole)
        if match and match["name"]:
            found[_unescaped(match["name"])] = _unescaped(match["value"]).strip(" \t")
        whole = ""
    return found


def write(path: Path, confs: Mapping[str, str]) -> None:
    """Write a new file, which only its owner can read; raises FileExistsError if there is one."""
    with open(path, "x", encoding="ascii", opener=private.opener) as file:
        file.writelines(f"{_escaped(name)}={_escaped(value)}\n" for name, value in confs.items())


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1]:
            return chr(int(match[1], 16))
        return _CONTROLS.get(match[2], match[2])

    # Two escapes of UTF-16 may be one character.
    plain = _ESCAPED.sub(character, text)
    return plain.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _escaped(text: str) -> str:
    def code(match: re.Match[str]) -> str:
        if match[0].isascii() and match[0].isprintable():
            return f"\\{match[0]}"
        units = match[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{units[n : n + 4]}" for n in range(0, len(units), 4))

    return _SPECIAL.sub(code, text)
