"""Run the snippets of guides, and keep below each what it prints.

    python scripts/execute_docs.py index training      # docs/index.md and docs/training.md, in place

A block ```` ```text prints ```` is the output of the Python above it; the tests compare all but its numbers.
"""

from __future__ import annotations

import argparse
import io
import linecache
import os
import re
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^```python(?P<info>[^\n]*)\n(?P<code>.*?)^```$(?:\n\n```text prints\n(?P<prints>.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
LINES, COLUMNS = 24, 84  # of an output that a page shows
_NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?|\bnan\b")
_MACHINES = re.compile(r"python - <<'PYTHON'\n(import numpy.*?)^PYTHON$", re.MULTILINE | re.DOTALL)


@dataclass
class Snippet:
    """A block of Python: where its code begins, what its fence says, and the output that the page shows."""

    line: int
    info: str
    code: str
    prints: str | None
    end: int

    def run(self, page: str, namespace: dict[str, Any]) -> str:
        """Run it and return what it printed; tracebacks show the page's lines."""
        # The JVM has another working directory than this process may have by now.
        code = self.code.replace('"machines.parquet"', repr(str(Path("machines.parquet").resolve())))
        source = "\n" * self.line + code
        name = f"<{page}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(source, name, "exec", dont_inherit=True), namespace)
        return printed.getvalue()


def snippets(text: str) -> Iterator[Snippet]:
    """Yield the Python blocks of a page."""
    for match in BLOCK.finditer(text):
        line = text[: match.start("code")].count("\n")
        yield Snippet(line, match["info"].strip(), match["code"], match["prints"], match.end("code") + 3)


def shape(printed: str) -> str:
    """Return an output without its numbers and spaces, which differ from machine to machine."""
    return "".join(re.sub(r"[-+]{2,}", "-", _NUMBER.sub("#", printed)).split())


def write_machines(folder: Path) -> None:
    """Write machines.parquet, the table of the first pages, as the page on a first model makes it."""
    found = _MACHINES.search((ROOT / "docs" / "first_model.md").read_text())
    assert found is not None
    before = Path.cwd()
    os.chdir(folder)
    try:
        exec(compile(found[1], "first_model.md", "exec"), {})
    finally:
        os.chdir(before)


def filled(page: str, text: str, namespace: dict[str, Any]) -> str:
    """Return a page with what its snippets print."""
    parts, at = [], 0
    for snippet in snippets(text):
        parts.append(text[at : snippet.end])
        at = snippet.end
        if snippet.prints is not None:
            at = text.index("\n```", text.index("```text prints", at)) + 4
        printed = "" if snippet.info == "no-run" else snippet.run(page, namespace).rstrip()
        lines = [part for line in printed.splitlines() for part in _wrapped(line.rstrip())]
        if lines and len(lines) <= LINES and max(map(len, lines)) <= COLUMNS:
            parts.append("\n\n```text prints\n" + "\n".join(lines) + "\n```")
    return "".join([*parts, text[at:]])


def _wrapped(line: str) -> list[str]:
    """Return a line as the page shows it: a long sentence takes two, a wide table has no place."""
    if not COLUMNS < len(line) <= 2 * COLUMNS or line.startswith(("|", "+", " ")):
        return [line]
    return textwrap.wrap(
        line, COLUMNS, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the snippets of guides, and keep what they print.")
    parser.add_argument("pages", nargs="+", help="of docs/, without folder and suffix")
    pages = parser.parse_args().pages
    from sparkdl import session

    for page in pages:
        path = ROOT / "docs" / f"{page}.md"
        spark = session.builder("local[2]").getOrCreate()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            write_machines(Path(folder))
            path.write_text(filled(page, path.read_text(), {"__name__": "__main__", "spark": spark}))
            os.chdir(ROOT)
        spark.stop()


if __name__ == "__main__":
    main()
