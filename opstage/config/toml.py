"""Read TOML files with the line of every key, and write TOML literals."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from ..ops.errors import UsageError
from ..readable import require_file
from .convert import NONE
from .layers import Layer

_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"^\s*\[\s*({_DOTTED})\s*\]")
_ASSIGNMENT = re.compile(rf"^\s*({_DOTTED})\s*=")

_DEEPEST = 64
_MOST_DOTS = 64
# closing quotes may be missing: a failed match would restart at each of the next quotes
_QUOTED = re.compile(
    r"""\"{3}(?:.*?\"{3}|.*)|'{3}(?:.*?'{3}|.*)|"(?:\\[^\n]|[^"\\\n])*+"?|'[^'\n]*+'?|#[^\n]*+""", re.DOTALL
)


def toml_document(
    path: str | os.PathLike[str], what: str = "the configuration", *, largest: int = 64 * 1024
) -> tuple[dict[str, Any], str]:
    """Return the tables of a TOML file of `what`, and its text.

    Raises UsageError, naming the file, if it cannot be read, is not TOML, or is larger or deeper than such a file is.
    """
    require_file(path, streams=True)
    try:
        with open(path, "rb") as file:
            data = file.read(largest + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot read {what}: {getattr(error, 'strerror', error)}") from error
    if len(data) > largest:
        raise UsageError(f"{path}: has more than {largest:,} bytes; expected {what}, of a few hundred")
    try:
        text = data.decode("utf-8")
        _require_flat(text)
        return tomllib.loads(text), text
    except ValueError as error:  # from tomllib, the decoder, and int() for thousands of digits
        raise UsageError(f"{path}: not a TOML file: {error}") from error


def read_toml(path: str | os.PathLike[str], whole: Collection[str] = ()) -> Layer:
    """Return the values of a TOML file by dotted path, with origins `path:line`. `whole` are tables that are one value.

    Raises as `toml_document` does.
    """
    document, text = toml_document(path)
    lines = _lines(text)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def walk(table: dict[str, Any], prefix: str) -> None:
        for key, value in table.items():
            full = f"{prefix}.{key}" if prefix else key
            if isinstance(value, dict) and full not in whole:
                walk(value, full)
                continue
            values[full] = value
            line = lines.get(full) or min((at for key, at in lines.items() if key.startswith(f"{full}.")), default=None)
            origins[full] = f"{path}:{line}" if line is not None else str(path)

    walk(document, "")
    return Layer(values, origins)


def _require_flat(text: str) -> None:
    """Raise ValueError for brackets or keys nested deeper than any configuration: `tomllib` recurses, and takes time
    quadratic in the parts of a key."""
    bare = _QUOTED.sub("''", text)
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", bare):
        depth = max(0, depth + (1 if bracket in "[{" else -1))
        if depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST} levels")
    if any(part.count(".") > _MOST_DOTS for part in re.split(r"[=\[\]{},\n]", bare)):
        raise ValueError(f"a key has more than {_MOST_DOTS} parts")


def toml_literal(value: Any) -> str:
    """Spell `value`, made of booleans, numbers, strings, paths, None and sequences of these, as TOML."""
    if value is None:
        return toml_literal(NONE)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, Path)):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(toml_literal, value))}]"
    raise TypeError(f"{type(value).__name__} has no TOML literal")


def _lines(text: str) -> dict[str, int]:
    """Return the line of each key by dotted path, skipping the content of multi-line values.

    `tomllib` reports no positions. A key that this parser misses is named in messages without its line.
    """
    found: dict[str, int] = {}
    table = ""
    inside: str | int = 0  # the quotes of an open multi-line string, or the number of open brackets
    for number, line in enumerate(text.splitlines(), start=1):
        if isinstance(inside, str):
            inside = 0 if inside in line else inside
            continue
        if not inside:
            header = _HEADER.match(line)
            if header:
                table = _plain(header[1])
                continue
            assignment = _ASSIGNMENT.match(line)
            if not assignment:
                continue
            key = _plain(assignment[1])
            found[f"{table}.{key}" if table else key] = number
            line = line[assignment.end() :]
        quotes = next((q for q in ('"""', "'''") if line.count(q) % 2), None)
        if quotes is not None:
            inside = quotes
            continue
        bare = _QUOTED.sub("", line)
        inside += bare.count("[") - bare.count("]")
    return found


def _plain(dotted: str) -> str:
    return ".".join(part.strip("\"'") for part in re.findall(_KEY, dotted))
