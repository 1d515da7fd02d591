"""A griffe extension: docstrings are plain text with code in backticks, in which `*`, `_` and `<` mean themselves."""

from __future__ import annotations

import re
from typing import Any

import griffe

_CODE = re.compile(r"(`[^`]*`)")
_MEANT = re.compile(r"([\\*_\[\]#])")


_ENTRY = re.compile(r"(\S(?:.*?\S)??) {2,}(\S.*)")
_FURTHER = re.compile(r" {3,}\S")


def markdown(text: str) -> str:
    """A docstring as Markdown: marks outside backticks escaped, and tables of names and meanings as lists.

    A paragraph is such a table if its first line is a name, two spaces or more, and a meaning, and every other one is
    that too, or goes on far to the right.
    """
    return "\n\n".join(_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", text))


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    entries = [_ENTRY.fullmatch(line) for line in lines]
    if entries[0] is None or not all(e or _FURTHER.match(line) for e, line in zip(entries, lines)):
        return _literal(text)
    items = []
    for entry, line in zip(entries, lines):
        if entry is not None and not _FURTHER.match(line):
            items.append(f"- `{entry[1].replace('`', '')}`: {_literal(entry[2])}")
        else:
            items.append(f"  {_literal(line.strip())}")
    return "\n".join(items)


def _literal(text: str) -> str:
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return _MEANT.sub(r"\\\1", text).replace("<", "&lt;")


class PlainText(griffe.Extension):
    """Escapes every docstring as it is read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """One object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
