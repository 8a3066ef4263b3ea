"""A page that loads nothing: its style and its only script are in it, and its policy (CSP) runs no other."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from string import Template

from sparkdl import __version__, html
from sparkdl.cli.arguments import command_error

_FOLDER = Path(__file__).parent

_PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>$title</title>
<style>
$style</style>
</head>
<body>
<h1>$title</h1>
<p>$remark</p>
$body</body>
</html>
""")


def document(title: str, remark: str, body: str, script: str | None = None) -> str:
    """Return a page."""
    source = ""
    if script is not None:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        source = f"script-src 'sha256-{digest}'; "
    return _PAGE.substitute(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; {source}base-uri 'none'; form-action 'none'",
        title=html.text(title),
        remark=html.text(f"{remark}, sparkdl {__version__}"),
        style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        body=body,
    )


def write(option: str, path: Path, text: str) -> None:
    """Write a file that an option names; raises ConfigError if it cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise command_error(f"{option} {str(path)!r} cannot be written: {error.strerror}") from error
