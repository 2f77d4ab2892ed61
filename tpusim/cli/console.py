"""Output to terminals: user text never becomes markup or control codes."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

_LABEL = 13
"""Columns of a line's name in reports."""


def make_console(file: TextIO | None = None) -> Console:
    """A console on ``file`` (default: standard output) that interprets nothing in what it is given."""
    return Console(file=file or sys.stdout, markup=False, emoji=False, highlight=False, soft_wrap=True)


def never_fail_to_encode() -> None:
    """Have standard output and error spell out characters that their encoding does not have."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def plain(text: str) -> str:
    """``text`` with control characters and lone surrogates spelled out, so that a terminal does not obey them."""
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    if character in "\n\t" or (character.isprintable() and not 0xD800 <= ord(character) < 0xE000):
        return character
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")


def one_line(message: object) -> str:
    """A message, or that of an error, in one line."""
    return plain(" ".join(part.strip() for part in str(message).splitlines() if part.strip()))


def styled(text: str, style: str = "") -> Text:
    """User text, made harmless, in one style."""
    return Text(plain(text), style=style)


def labelled(line: str, style: str = "") -> Text:
    """A line of a report: its name dimmed, the rest in ``style``."""
    safe = plain(line)
    return Text.assemble((safe[:_LABEL], "dim"), (safe[_LABEL:], style))


def can_show(console: Console, text: str) -> bool:
    """Whether the console's encoding has all characters of ``text``."""
    try:
        text.encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True
