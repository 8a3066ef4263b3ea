"""MkDocs hooks: pages of the site that lie elsewhere in the repository than in docs/.

Notebooks become Markdown with their outputs, examples a page each, and the root's documents pages of their
own. Links between all of these are written as the repository has them, and changed here.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter

ROOT = Path(__file__).parents[2]
ROOT_PAGES = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
}
_LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
_FENCE_INFO = re.compile(r"^(```\w+) [\w-]+$", re.MULTILINE)
_HELPS = """
import sys
from sparkdl.__main__ import main
for command in sys.argv[1:]:
    try:
        main([*command.split(), "--help"])
    except SystemExit as end:
        if end.code:
            raise
        print(end="\\f")
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of other files."""
    for name, page in ROOT_PAGES.items():
        if page not in files.src_uris:
            files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    files.append(File.generated(config, "commands.md", content=commands_page()))
    for path in sorted(ROOT.glob("examples/*.py")):
        files.append(File.generated(config, f"examples/{path.stem}.md", content=example_page(path)))
    for path in sorted(ROOT.glob("notebooks/*.ipynb")):
        text, images = notebook_page(path)
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=text))
        for name, data in images.items():
            files.append(File.generated(config, f"notebooks/{name}", content=data))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at pages of the site, and drop what is meant for the tests."""
    here = page.file.src_uri
    source = next((name for name, uri in ROOT_PAGES.items() if uri == here and here != "index.md"), None)
    # Where the page lies in the repository decides what its links are relative to.
    folder = "" if source else posixpath.dirname(f"docs/{here}")
    if here.startswith(("examples/", "notebooks/")):
        folder = posixpath.dirname(here)

    def point(match: re.Match[str]) -> str:
        target = site_uri(posixpath.normpath(posixpath.join(folder, match[2])))
        return match[1] + posixpath.relpath(target, posixpath.dirname(here) or ".") + match[3]

    return _FENCE_INFO.sub(r"\1", _LINK.sub(point, markdown))


def site_uri(path: str) -> str:
    """Return the page that a file of the repository became, by its path there."""
    if path in ROOT_PAGES:
        return ROOT_PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith(("examples/", "notebooks/")):
        return re.sub(r"\.(py|ipynb)$", ".md", path)
    return path


def commands_page() -> str:
    """Return a page with the help of each command."""
    (overview,) = helps_of("")
    names = re.findall(r"^    (\w+)", overview, re.MULTILINE)
    helps = zip(names, helps_of(*names), strict=True)
    parts = [f"## {name}\n\n```{{ .text .help }}\n{text}```\n" for name, text in helps]
    return "\n".join(["# Commands\n\nWhat `sparkdl COMMAND --help` says.\n", *parts])


def helps_of(*commands: str) -> list[str]:
    """Return what commands say about themselves, 80 columns wide; one process serves all of them."""
    call = [sys.executable, "-c", _HELPS, *commands]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\f")[:-1]


def example_page(path: Path) -> str:
    """Return the page of an example: its docstring, and the program."""
    code = path.read_text()
    summary, _, rest = (ast.get_docstring(ast.parse(code)) or path.stem).partition("\n")
    wide = "---\nhide: [toc]\n---\n"  # a program has no headings, and lines of up to 110 characters
    return f'{wide}# {path.stem}\n\n{summary}\n{rest}\n\n```python title="examples/{path.name}"\n{code}```\n'


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook as Markdown, and its pictures by file name."""
    notebook = nbformat.read(path, as_version=4)
    naming = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    text, resources = MarkdownExporter().from_notebook_node(notebook, {**naming, "metadata": {}})
    return text, resources["outputs"]
