"""A folder of published versions: which of them is served.

::

    path/version-00000123/   a saved model, as of the completed iterations of its name
         current.json        the name of the one to serve

``current.json`` is replaced as a whole, after its version is complete: whoever reads the path finds the old
version or the new one.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from sparkdl.exceptions import ConfigError

POINTER = "current.json"
LONGEST = 1 << 16
_NAME = re.compile(r"version-([0-9]{8,})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Current:
    """What ``current.json`` says.

    Attributes:
        iteration: completed iterations of the version that is served.
        batches: batches of the stream that it has learned.
        seconds: when it was published, in seconds since 1970.
    """

    iteration: int
    batches: int = 0
    seconds: float = 0.0

    @property
    def name(self) -> str:
        """The folder of the version."""
        return name_of(self.iteration)

    def to_json(self) -> bytes:
        """Return the file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes, path: str) -> Current:
        """Read the file; a name made of a number leads nowhere else.

        Raises:
            ConfigError: if it is something else.
        """
        try:
            values = json.loads(data)
            iteration, batches, seconds = (values[name] for name in cls.__slots__)
            for count in (iteration, batches):
                if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                    raise TypeError(f"{count!r:.40} is no count")
            return cls(iteration, batches, float(seconds))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise ConfigError(
                f"path={path!r}: its {POINTER} does not name a version: {error!r:.200}", code="config-saved"
            ) from error


def name_of(iteration: int) -> str:
    """Return the folder of a version."""
    return f"version-{iteration:08d}"


def iteration_of(name: str) -> int | None:
    """Return the iteration of a version's folder, ``None`` if it is called otherwise."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and name == name_of(int(match[1])) else None
