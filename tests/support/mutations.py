"""Damage to folders that programs write: what disks, networks, editors and strangers do to them.

A folder is a *tree*: content by name relative to the folder, names with ``/``. Strategies draw trees; a test
writes each to a new place, reads it with what it tests, and looks at what came out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

DEEP = 100_000


@dataclass(frozen=True)
class Link:
    """A symbolic link.

    Attributes:
        target: where it points to.
    """

    target: str


Entry = bytes | Link
Tree = dict[str, Entry]
Damage = Callable[[bytes], st.SearchStrategy[bytes]]


def read_tree(folder: Path) -> Tree:
    """Read all files of a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def write_tree(tree: Mapping[str, Entry], folder: Path) -> Path:
    """Write a tree to a folder that may not be there yet, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in tree.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            path.symlink_to(entry.target)
        else:
            path.write_bytes(entry)
    return folder


# -- bytes ------------------------------------------------------------------------------------------


@st.composite
def damaged_bytes(draw: st.DrawFn, data: bytes) -> bytes:
    """Flip, overwrite, cut out, repeat or insert a few bytes, or cut a file off."""
    kind = draw(st.sampled_from(["flip", "flip", "flip", "overwrite", "delete", "repeat", "insert", "cut"]))
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    size = draw(st.integers(1, 16))
    found = bytearray(data)
    if kind == "flip" and found:
        found[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "overwrite":
        found[at : at + size] = draw(st.sampled_from([b"\0", b"\xff", b"{", b"9"])) * size
    elif kind == "delete":
        del found[at : at + size]
    elif kind == "repeat":
        found[at:at] = found[at : at + size]
    elif kind == "insert":
        found[at:at] = draw(st.binary(min_size=1, max_size=16))
    else:
        del found[at:]
    return bytes(found)


# -- JSON -------------------------------------------------------------------------------------------

_STRANGE: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 2**31, 2**63, -(2**63), 2**64, 10**30, 0.5, -0.0, float("nan"), 1e308),
    *(float("inf"), "", "0", "a", "\x00", "\ud800", "../../x", "/etc/passwd", "os:system", "a" * 1000),
    *([], [[]], [0], [-1, -1], [2**40, 2**40], {}, {"": None}, {"$build": "os:system", "arguments": {}}),
    *({"$tuple": 3}, {"$dict": [[1]]}, {"$import": "sparkdl_tripwire:fly"}, {"$nothing": 1}),
]


@st.composite
def damaged_value(draw: st.DrawFn, value: Any) -> Any:
    """Change one place of a tree of lists and dicts: replaced, removed, renamed, repeated, or moved."""
    places = list(_places(value))
    path = draw(st.sampled_from(places))
    if not path:
        return draw(st.sampled_from(_STRANGE))
    value = json.loads(json.dumps(value))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    key, old = path[-1], holder[path[-1]]
    kind = draw(st.sampled_from(["replace", "replace", "near", "remove", "rename", "add", "swap"]))
    if kind == "near" and isinstance(old, int | float) and not isinstance(old, bool):
        holder[key] = old + draw(st.sampled_from([1, -1, 8, -8, 0.5]))
    elif kind == "near" and isinstance(old, str) and old:
        at = draw(st.integers(0, len(old) - 1))
        holder[key] = old[:at] + draw(st.sampled_from("0aZ.:/_$")) + old[at + 1 :]
    elif kind == "remove":
        del holder[key]
    elif kind == "rename" and isinstance(holder, dict):
        del holder[key]
        holder[draw(st.sampled_from(["", "x", "../x", "__class__", str(key) + "x"]))] = old
    elif kind == "add":
        extra = draw(st.sampled_from(_STRANGE))
        if isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "x", "../x", "/tmp/x", str(key) + "x"]))] = extra
        else:
            holder.append(extra)
    elif kind == "swap":
        other = draw(st.sampled_from(places))
        found = value
        for step in other:
            found = found[step]
        holder[key] = json.loads(json.dumps(found))
    else:
        holder[key] = draw(st.sampled_from(_STRANGE))
    return value


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of each value in a tree, that of the tree itself first."""
    found = [path]
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    else:
        items = list(enumerate(value)) if isinstance(value, list) else []
    for key, item in items:
        found += _places(item, (*path, key))
    return found


@st.composite
def damaged_json(draw: st.DrawFn, text: bytes) -> bytes:
    """Change the structure of a JSON file, or write what only just is JSON, or is not."""
    kind = draw(st.sampled_from([*["structure"] * 9, "odd"]))
    if kind == "structure":
        return json.dumps(draw(damaged_value(json.loads(text)))).encode()
    deep = b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP
    twice = b'{"format": 1,' + text.lstrip()[1:]
    odd = [
        *deep,
        twice,
        b"",
        b"{",
        b"null",
        b'"\xff"',
        b"9" * 5000,
        b"\xef\xbb\xbf" + text,
        text.decode().encode("utf-16"),
    ]
    return draw(st.sampled_from(odd))


@st.composite
def damaged_safetensors(draw: st.DrawFn, data: bytes) -> bytes:
    """Change the header of a safetensors file: its JSON, or the length in front of it."""
    length = int.from_bytes(data[:8], "little")
    text, rest = data[8 : 8 + length], data[8 + length :]
    if draw(st.integers(0, 4)) == 0:
        length = draw(
            st.sampled_from([0, 1, max(length - 1, 0), length + 1, len(data), 2**31, 2**63, 2**64 - 1])
        )
    else:
        text = draw(damaged_json(text))
        length = len(text)
    return length.to_bytes(8, "little") + text + rest


# -- folders ----------------------------------------------------------------------------------------


@st.composite
def damaged_tree(draw: st.DrawFn, tree: Mapping[str, Entry], damages: Mapping[str, Damage]) -> Tree:
    """Damage one file of a folder, or what the files are called.

    Args:
        draw: of Hypothesis.
        tree: the sound folder.
        damages: by ending of a name what else than bytes can be damaged, such as ``damaged_json``.
    """
    found = dict(tree)
    name = draw(st.sampled_from(sorted(tree)))
    data = tree[name]
    assert isinstance(data, bytes)
    kind = draw(st.sampled_from(["bytes", "bytes", "structure", "structure", "name"]))
    structure = next((damage for ending, damage in damages.items() if name.endswith(ending)), None)
    if kind == "structure" and structure is not None:
        found[name] = draw(structure(data))
    elif kind == "name":
        _rename(draw, found, name, data)
    else:
        found[name] = draw(damaged_bytes(data))
    return found


def _rename(draw: st.DrawFn, tree: Tree, name: str, data: bytes) -> None:
    """Remove a file, give it another name or place, or put something else where it was."""
    kind = draw(st.sampled_from(["remove", "rename", "move", "swap", "copy", "folder", "loop", "outside"]))
    folder, base = os.path.split(name)
    other = draw(st.sampled_from(sorted(tree)))
    del tree[name]
    if kind == "rename":
        tree[os.path.join(folder, draw(st.sampled_from(["x", ".x", "_x", base[:-1] or "x", base + "x"])))] = (
            data
        )
    elif kind == "move":
        tree[base if folder else f"x/{base}"] = data
    elif kind == "swap" and other != name:
        tree[name], tree[other] = tree[other], data
    elif kind == "copy":
        tree[name] = data
        tree[os.path.join(folder, draw(st.sampled_from(["z", "0"])) + base)] = data
    elif kind == "folder":
        tree[f"{name}/{base}"] = data
    elif kind == "loop":
        tree[name] = Link(base)
    elif kind == "outside":
        tree[name] = Link(draw(st.sampled_from(["/dev/null", "/dev/zero", "/etc/passwd", "/nowhere", "/"])))
