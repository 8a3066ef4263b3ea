"""From text to rows of token numbers of one length.

Everything here is plain Python: the same :class:`TextIndex` numbers tokens in the tasks of a Spark job
and, without Spark, for a model that is served.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from sparkdl.exceptions import ConfigError, DataError

PADDING = 0
"""Number of the padding token."""

UNKNOWN = 1
"""Number of the token that stands for all others."""

End = Literal["start", "end"]


def tokenize(text: str, pattern: str = r"\w+", lowercase: bool = True) -> list[str]:
    r"""Find the tokens of a text."""
    return [match.group() for match in re.finditer(pattern, text.lower() if lowercase else text)]


def check_pattern(pattern: str) -> None:
    """Check that a token's regular expression can be used."""
    try:
        matches_nothing = re.compile(pattern).match("") is not None
    except re.error as error:
        raise ConfigError(f"pattern={pattern!r} is not a regular expression: {error}") from None
    if matches_nothing:
        raise ConfigError(f"pattern={pattern!r} matches empty text; a token has at least one character")


@dataclass(frozen=True)
class TextIndex:
    """Turns a text into as many token numbers as every other text."""

    # tokens by number; number 0 is padding and number 1 stands for all tokens that are not in the vocabulary
    vocabulary: tuple[str, ...]
    length: int  # how many numbers a text becomes
    pattern: str = r"\w+"  # regular expression of a token, see :func:`tokenize`
    lowercase: bool = True  # whether to lower the case of texts
    padding: End = "end"  # the end of a short text at which it is padded
    truncation: End = "end"  # the end of a long text that is cut off

    def __post_init__(self) -> None:
        object.__setattr__(self, "vocabulary", tuple(self.vocabulary))
        if len(self.vocabulary) < 2 or len(set(self.vocabulary)) != len(self.vocabulary):
            raise ConfigError(
                f"vocabulary of {len(self.vocabulary)} tokens, {len(set(self.vocabulary))} of them "
                "different: expected padding, unknown, then each token once"
            )
        if self.length < 1:
            raise ConfigError(f"length={self.length!r}: expected a positive number of tokens")
        check_pattern(self.pattern)
        for name, value in (("padding", self.padding), ("truncation", self.truncation)):
            if value not in ("start", "end"):
                raise ConfigError(f"{name}={value!r}: expected 'start' or 'end'")

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.vocabulary)}

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_numbers"}

    def __call__(self, text: str | Sequence[str | None]) -> list[int]:
        """Return the numbers of a text, or of tokens that were found before; a null token is unknown."""
        if isinstance(text, str):
            found = tokenize(text, self.pattern, self.lowercase)
            # a text that holds the name of padding has a word there
            tokens: Sequence[str | None] = [None if t == self.vocabulary[PADDING] else t for t in found]
        elif isinstance(text, Sequence):
            tokens = text
        else:
            raise DataError(f"expected a text or its tokens, got {type(text).__name__}", code="data-type")
        length = self.length
        kept = tokens[:length] if self.truncation == "end" else tokens[-length:]
        numbers = [self._numbers.get(token, UNKNOWN) if token is not None else UNKNOWN for token in kept]
        missing = [PADDING] * (length - len(numbers))
        return numbers + missing if self.padding == "end" else missing + numbers
