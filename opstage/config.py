"""Configuration: typed fields of dataclasses, filled in layers (defaults, files, environment, flags) by dotted path.

Command-line parsers and settings libraries merge such layers too, but forget which layer a value came from. Here every
value keeps its origin, for error messages and for the merged configuration as it is shown and saved.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import tomllib
import types
import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, final, get_args, get_origin, get_type_hints

from .files import require_file
from .ops.errors import OpstageError, UsageError, brief, nearest

# Layers of values, merged field by field ------------------------------------------------------------------------------

_DEFAULT = "default"


@final
@dataclass(frozen=True)
class Layer:
    """Values and their origins by dotted path. With `text` values are spelled as on a command line."""

    values: Mapping[str, Any]
    origins: Mapping[str, str]
    text: bool = False

    @classmethod
    def of(cls, values: Mapping[str, Any], origin: str, whole: Collection[str] = ()) -> Layer:
        """Return a layer of values, nested or by dotted path, with a single origin; mappings in `whole` are kept as
        values."""
        flat: dict[str, Any] = {}

        def walk(table: Mapping[str, Any], prefix: str) -> None:
            for key, value in table.items():
                if isinstance(value, Mapping) and prefix + key not in whole:
                    walk(value, f"{prefix}{key}.")
                else:
                    flat[prefix + key] = value

        walk(values, "")
        return cls(flat, dict.fromkeys(flat, origin))


@final
@dataclass(frozen=True)
class Merged:
    """The result of a merge: an instance per section, and every value and its origin by dotted path, in schema
    order."""

    sections: Mapping[str, Any]
    values: Mapping[str, Any]
    origins: Mapping[str, str]


def merge(schema: Mapping[str, type], layers: Sequence[Layer], *, weak: Collection[str] = ()) -> Merged:
    """Create an instance of each section's dataclass. Later layers override earlier ones, and all override the
    defaults.

    `weak` are origins that, like the defaults, are not blamed if a section's values conflict.

    Raises `UsageError`, beginning with the origin, for an unknown key (with the nearest one), for a value of the wrong
    type, and for one that the dataclass itself rejects.
    """
    fields = {f"{name}.{path}": field for name, cls in schema.items() for path, field in _leaves(cls).items()}
    values = {path: default for path, (_, default) in fields.items()}
    origins = dict.fromkeys(fields, _DEFAULT)
    for layer in layers:
        for path, value in layer.values.items():
            origin = layer.origins[path]
            section, _, key = path.partition(".")
            if (new := getattr(schema.get(section), "EARLIER_NAMES", {}).get(key)) is not None:
                warnings.warn(f"{origin}: {path} is now {section}.{new}", DeprecationWarning, stacklevel=2)
                path = f"{section}.{new}"
            if path not in fields:
                raise UsageError(f"{origin}: {_unknown(path, schema, fields)}")
            annotation = fields[path][0]
            try:
                values[path] = _read(value, annotation, layer.text)
            except Mismatch as error:
                where = origin if origin == f"--{path}" else f"{origin}: {path}"  # a flag names it already
                raise UsageError(f"{where}: {error}") from None
            origins[path] = origin
    missing = next((path for path, value in values.items() if value is dataclasses.MISSING), None)
    if missing is not None:
        raise UsageError(f"{missing} has no default and was not given; expected {describe(fields[missing][0])}")
    return Merged(
        {name: _build(cls, name, values, origins, {_DEFAULT, *weak}) for name, cls in schema.items()}, values, origins
    )


def _read(value: Any, annotation: Any, text: bool) -> Any:
    if text and value is None:
        if annotation is not bool and bool not in get_args(annotation):
            raise Mismatch(f"it has no value; expected {describe(annotation)}")
        return True  # a flag without a value
    value = convert(value, annotation, text=text)
    if not _is_finite(value):
        raise Mismatch(f"{brief(value)} is not finite")
    return value


hints_of = cache(get_type_hints)


def fields_of(cls: type) -> list[str]:
    """Return the dotted paths of the fields of a dataclass, and cache its annotations."""
    return list(_leaves(cls))


@cache
def _leaves(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return annotation and default of every field; those of nested dataclasses by dotted path."""
    hints = hints_of(cls)
    found: dict[str, tuple[Any, Any]] = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            for path, leaf in _leaves(annotation).items():  # type: ignore[arg-type]  # an annotation is a class
                found[f"{field.name}.{path}"] = leaf
            continue
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        found[field.name] = annotation, default
    return found


def _build(cls: type, prefix: str, values: Mapping[str, Any], origins: Mapping[str, str], weak: Collection[str]) -> Any:
    hints = hints_of(cls)
    arguments = {}
    for field in dataclasses.fields(cls):
        path = f"{prefix}.{field.name}"
        if not field.init:
            continue
        nested = hints[field.name]
        is_nested = dataclasses.is_dataclass(nested)
        arguments[field.name] = _build(nested, path, values, origins, weak) if is_nested else values[path]
    try:
        return cls(**arguments)
    except (OpstageError, ValueError, TypeError) as error:
        raise UsageError(f"{_culprits(cls, prefix, arguments, origins, weak)}: {error}") from None


def _culprits(
    cls: type, prefix: str, arguments: Mapping[str, Any], origins: Mapping[str, str], weak: Collection[str]
) -> str:
    """Return the origin of the single value that makes `cls` raise, or of all given values if only their combination
    does."""
    given = {n: v for n, v in arguments.items() if origins.get(f"{prefix}.{n}", _DEFAULT) not in weak}
    for name, value in given.items():
        try:
            cls(**{name: value})
        except (OpstageError, ValueError, TypeError):
            return origins[f"{prefix}.{name}"]
    return ", ".join(dict.fromkeys(origins[f"{prefix}.{name}"] for name in given)) or prefix


def _unknown(path: str, schema: Mapping[str, type], fields: Mapping[str, Any]) -> str:
    section, _, key = path.partition(".")
    if section in schema and key:
        own = [field.removeprefix(f"{section}.") for field in fields if field.startswith(f"{section}.")]
        close = nearest(key, own)
        elsewhere = [field for field in fields if field.rpartition(".")[2] == key]
        if not close and elsewhere:
            close = f" (did you mean {elsewhere[0]!r}?)"
        return f"[{section}] has no key {key!r}{close}; it has {', '.join(own) or 'none'}"
    elsewhere = [field for field in fields if field.rpartition(".")[2] == (key or section)]
    close = nearest(section, schema) if key else ""
    if not close and elsewhere:
        close = f" (did you mean {elsewhere[0]!r}?)"
    what = f"table [{section}]" if key else f"key {section!r} outside the tables"
    return f"no {what}{close}; the tables are {', '.join(f'[{name}]' for name in schema)}"


# Values of annotated types --------------------------------------------------------------------------------------------

NONE = "none"
"""The spelling of None in files and flags, since TOML has none."""

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Mismatch(Exception):
    """A value of the wrong type; the message has the value and the expected type."""


def convert(value: Any, annotation: Any, *, text: bool = False) -> Any:
    """Return `value` converted to type `annotation`. Raises `Mismatch`.

    text    whether the value is spelled as in a flag: `6`, `1e-3`, `true`, `64,128`, `none`

    Annotations are bool, int, float, str, Path, Literal, tuple[T, ...], tuple[T, U], and unions of these with None. A
    float may be written as an integer. A tuple is a sequence. Nothing else is reinterpreted: "3" is not an integer,
    except as text.
    """
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        if type(None) in members and (value.strip().lower() if text else value) in (None, NONE):
            return None
        fitting = [member for member in members if member is not type(None)]
        for member in fitting:
            try:
                return convert(value, member, text=text)
            except Mismatch:
                if len(fitting) == 1:
                    raise
    if origin is Literal:
        if isinstance(value, str) and value in members:
            return value
        close = nearest(value, members) if isinstance(value, str) else ""
        raise Mismatch(f"{brief(value)} is not {describe(annotation)}{close}")
    if origin is tuple:
        items = _items(value) if text else value
        if isinstance(items, (list, tuple)):
            if members[1:] == (Ellipsis,):
                return tuple(convert(item, members[0], text=text) for item in items)
            if len(items) == len(members):
                return tuple(convert(item, member, text=text) for item, member in zip(items, members))
    elif origin is Mapping and isinstance(value, dict):
        return {key: convert(item, members[1]) for key, item in value.items()}
    elif text and annotation is bool:
        value = _BOOLEANS.get(value.strip().lower(), value)
    elif text and annotation in (int, float):
        with suppress(ValueError):  # also for thousands of digits
            value = annotation(value.strip())
    if annotation is int and type(value) is int:
        if not -(2**63) <= value <= 2**64:
            raise Mismatch(f"{brief(value)} is too large; integers have at most 64 bits")
        return value
    if annotation is float and type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            raise Mismatch(f"{brief(value)} is too large for a number") from None
    if annotation in (bool, str) and isinstance(value, annotation):
        return value
    if annotation is Path and isinstance(value, (str, Path)) and str(value):
        return Path(value)
    raise Mismatch(f"{brief(value)} is not {describe(annotation)}")


def _items(text: str) -> list[str]:
    inside = text.strip().removeprefix("[").removesuffix("]").removeprefix("(").removesuffix(")")
    return [part for part in inside.split(",") if part.strip()]


def describe(annotation: Any) -> str:
    """Describe `annotation` in words: "an integer", "a list, each a number"."""
    simple = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path"}
    if annotation in simple:
        return simple[annotation]
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member) for member in members if member is not type(None))
    if origin is Literal:
        return f"one of {', '.join(map(repr, members))}"
    if origin is tuple and members[1:] == (Ellipsis,):
        return f"a list, each {describe(members[0])}"
    if origin is Mapping:
        return f"a table, each {describe(members[1])}"
    if origin is tuple:
        return f"a list of {len(members)}: {', '.join(map(describe, members))}"
    return f"a {getattr(annotation, '__name__', annotation)}"


def _is_finite(value: Any) -> bool:
    """Whether no number in `value` is nan or infinite."""
    if isinstance(value, tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


# TOML files, with the line of every key, and TOML literals ------------------------------------------------------------

_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_HEADER = re.compile(rf"^\s*\[\s*({_DOTTED})\s*\]")
_ASSIGNMENT = re.compile(rf"^\s*({_DOTTED})\s*=")
_QUOTED = re.compile(r""""(?:\\.|[^"\\])*+"?|'[^']*+'?|#.*""")


def toml_document(
    path: str | os.PathLike[str], what: str = "the configuration", *, largest: int = 64 * 1024
) -> tuple[dict[str, Any], str]:
    """Return the tables of a TOML file of `what`, and its text.

    Raises UsageError, naming the file, if it cannot be read, is not TOML, or is larger than such a file is.
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
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # from tomllib, the decoder, and int() for thousands of digits
        raise UsageError(f"{path}: not a TOML file: {error}") from error


def read_toml(path: str | os.PathLike[str], whole: Collection[str] = (), *, largest: int = 64 * 1024) -> Layer:
    """Return the values of a TOML file by dotted path, with origins `path:line`. `whole` are tables that are one value.

    Raises as `toml_document` does.
    """
    document, text = toml_document(path, largest=largest)
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

    try:
        walk(document, "")
    except RecursionError:
        raise UsageError(f"{path}: not a TOML file for a configuration: a key has too many parts") from None
    return Layer(values, origins)


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


# Settings as spelled in messages: as command-line flags, and in Python ------------------------------------------------


def spelled(settings: Mapping[str, Any]) -> str:
    """Spell settings by dotted path as flags and as arguments of `opstage.fit`.

    `{"data.label": "kind"}` is `--data.label kind, in Python settings={'data': {'label': 'kind'}}`.
    """
    tables: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        table, _, name = path.rpartition(".")
        tables.setdefault(table, {})[name] = value
    flags = " ".join(f"--{path} {_flag(value)}" for path, value in settings.items())
    return f"{flags}, in Python settings={tables}"


def _flag(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ",".join(map(str, value)) if isinstance(value, tuple) else toml_literal(value)


# Parameter groups as text, `*.bias|*norm*: weight_decay=0; emb.*: lr=1e-4`, or as tables ------------------------------

GROUPS = "optimizer.groups"
"""The setting; a file may use tables, `[optimizer.groups."*.bias"]`."""

_FORM = "expected PATTERN: NAME=NUMBER, …; for instance '*.bias|*norm*: weight_decay=0; emb.*: lr=1e-4'"


def read_groups(text: str) -> dict[str, dict[str, float | bool]]:
    """Parse groups. Raises UsageError."""
    groups: dict[str, dict[str, float | bool]] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        pattern, colon, numbers = (piece.strip() for piece in part.partition(":"))
        if not (pattern and colon and numbers):
            raise UsageError(f"groups: {brief(part)}: {_FORM}")
        if pattern in groups:
            raise UsageError(f"groups: {brief(pattern)} is given twice; put its numbers together")
        values: dict[str, float | bool] = {}
        for entry in numbers.split(","):
            name, equals, value = (piece.strip() for piece in entry.partition("="))
            if not (name and equals) or name in values:
                raise UsageError(f"groups: {brief(part)}: {brief(entry.strip())}: {_FORM}")
            values[name] = _number(part, value)
        groups[pattern] = values
    return groups


def write_groups(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Format groups as `read_groups` parses them. Raises UsageError for values that are not groups."""
    parts = []
    for pattern, values in groups.items():
        if not isinstance(values, Mapping) or not values:
            raise UsageError(f"{GROUPS}: {brief(pattern)} must be a table of numbers, such as {{ weight_decay = 0 }}")
        if set(pattern) & set(":;"):
            raise UsageError(f"{GROUPS}: {brief(pattern)} has a colon or semicolon, which no pattern can have")
        for name, value in values.items():
            if not isinstance(value, (int, float)):
                raise UsageError(f"{GROUPS}: {brief(pattern)}: {name} must be a number but is {brief(value)}")
        parts.append(f"{pattern}: {', '.join(f'{name}={_text(value)}' for name, value in values.items())}")
    return "; ".join(parts)


def with_group_text(layer: Layer) -> Layer:
    """Return the layer with groups that are tables converted to text."""
    groups = layer.values.get(GROUPS)
    if not isinstance(groups, Mapping):
        return layer
    try:
        text = write_groups(groups)
    except UsageError as error:
        raise UsageError(f"{layer.origins[GROUPS]}: {error}") from None
    return replace(layer, values={**layer.values, GROUPS: text})


def _text(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _number(part: str, text: str) -> float | bool:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"groups: {brief(part)}: {brief(text)} is not a number; {_FORM}") from None
