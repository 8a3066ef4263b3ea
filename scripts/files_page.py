"""Write docs/design/files.md: every module of the package with the first line of its docstring.

python scripts/files_page.py            # writes the page
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "design" / "files.md"
HEAD = """# Files

Every module of `sparkdl/`, with the first line of its docstring. `python scripts/files_page.py` writes this
page, and a test compares.
"""


def summary(path: Path) -> str:
    """Return the first line of a module's docstring, in Markdown."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    line = text.partition("\n\n")[0].replace("\n", " ")
    return line.replace("``", "`").replace("|", "\\|").removesuffix(".")


def defines(path: Path) -> bool:
    """Return whether a module defines public functions or classes, not only names of others."""
    body = ast.parse(path.read_text()).body
    return any(isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_" for node in body)


def page() -> str:
    """Return the page as it should be."""
    home = ROOT / "sparkdl"
    folders = sorted({path.parent for path in home.rglob("*.py")})
    parts = [HEAD]
    for folder in folders:
        modules = [
            path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py" or defines(path)
        ]
        first = folder / "__init__.py"
        if not modules or not first.exists():
            continue
        name = folder.relative_to(ROOT)
        rows = [f"| `{path.relative_to(home)}` | {summary(path)} |" for path in modules]
        parts.append(
            "\n".join([f"## {name}", "", f"{summary(first)}.", "", "| module | |", "|---|---|", *rows, ""])
        )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
