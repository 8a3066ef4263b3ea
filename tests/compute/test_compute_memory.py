"""A worker's C library keeps freed memory, and gives back what is too much."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sparkdl.compute import memory

_PROGRAM = """
import ctypes, sys
from pathlib import Path
from sparkdl.compute import memory

def resident():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) >> 10

memory.keep_freed_memory()
before = resident()
blocks = [bytearray(b"1") * (2 << 20) for _ in range(200)]
after = [resident() - before]
kept = blocks[::10]  # holes between them
del blocks
after.append(resident() - before)
memory.trim_memory()
after.append(resident() - before)
large = bytearray(b"1") * (32 << 20)
after.append(resident() - before)
del large
after.append(resident() - before)
print(*after)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_freed_memory_is_kept_until_it_is_too_much() -> None:
    try:
        memory.ctypes.CDLL(None).mallinfo2  # type: ignore[attr-defined]  # noqa: B018
    except AttributeError:
        pytest.skip("needs glibc 2.33")
    result = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    used, freed, trimmed, more, less = map(int, result.stdout.split())
    assert used >= 390
    assert freed >= 380, "freed memory was given back"
    assert trimmed < 100, "too much of it was kept"
    assert more >= trimmed + 30
    assert less < trimmed + 10, "a large block was kept"


def test_other_c_libraries_are_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())  # type: ignore[attr-defined]
    memory.keep_freed_memory()
    memory.trim_memory()
