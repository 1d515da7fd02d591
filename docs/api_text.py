"""A griffe extension: docstrings are plain text with code in backticks, in which `*`, `_` and `<` mean themselves, and
the examples of `api/examples` stand below them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import griffe

EXAMPLES = Path(__file__).parent / "api" / "examples"

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


def examples() -> dict[str, str]:
    """By public name, `opstage.Ops.relu`, the lines of a session of Python: a name, then `>>>`, `...` and answers."""
    found = {}
    for file in sorted(EXAMPLES.glob("*.txt")):
        for block in file.read_text(encoding="utf-8").strip().split("\n\n"):
            name, _, lines = block.partition("\n")
            found[name] = lines
    return found


def _paragraph(text: str) -> str:
    lines = text.split("\n")
    if lines[0] == "Raises:":
        return _errors(text)
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


def _errors(section: str) -> str:
    """The errors that a docstring states, each linked to its own entry."""
    found = (" ".join(entry.split()) for entry in re.split(r"\n {4}(?! )", section)[1:])
    items = (entry.partition(": ") for entry in found)
    return "\n".join(["[Raises][causes]:", "", *[f"- {_linked(name)}: {_literal(cause)}" for name, _, cause in items]])


def _linked(error: str) -> str:
    """The name of an error: those of Opstage lead to what they are."""
    import opstage

    return f"[`{error}`][opstage.{error}]" if error in opstage.__all__ else f"`{error}`"


def _literal(text: str) -> str:
    parts = _CODE.split(text)
    return "".join(part if part.startswith("`") else _escaped(part) for part in parts)


def _escaped(text: str) -> str:
    return _MEANT.sub(r"\\\1", text).replace("<", "&lt;")


class PlainText(griffe.Extension):
    """Escapes every docstring as it is read, and adds the examples when all are there."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """One object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The whole package: an example below the docstring of each public name that has one."""
        if pkg.name == "opstage":
            for name, lines in examples().items():
                _add(pkg, name.split(".")[1:], f"```pycon\n{lines}\n```")


def _add(pkg: griffe.Module, path: list[str], example: str) -> None:
    """Add it below the docstring of the object at a path in the package."""
    obj: Any = pkg
    for part in path:
        members: Mapping[str, Any] = obj.all_members if obj.is_class else obj.members
        obj = members[part]
        obj = obj.final_target if obj.is_alias else obj
    if obj.is_module and inspect.isfunction(_value(path)):  # a function and a submodule of one name
        return _add(pkg, [*_value(path).__module__.split(".")[1:], path[-1]], example)
    if obj.docstring is None:
        obj.docstring = griffe.Docstring(markdown(_text_of(path)), parent=obj)
    if example not in obj.docstring.value:
        obj.docstring.value = f"{obj.docstring.value.rstrip()}\n\n{example}"


def _text_of(path: list[str]) -> str:
    """What Python shows for a name that has no docstring where it is written, such as `adam = Adam`."""
    value = _value(path)
    text = inspect.getdoc(value) or ""
    return f"`{path[-1]}{inspect.signature(value)}`\n\n{text}" if inspect.isclass(value) else text


def _value(path: list[str]) -> Any:
    import opstage

    value: Any = opstage
    for part in path:
        value = getattr(value, part)
    return value
