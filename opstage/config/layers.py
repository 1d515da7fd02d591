"""Layers of values for a schema of dataclasses, merged field by field, each value with its origin."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final, get_type_hints

from ..ops.errors import OpstageError, UsageError, nearest
from ..ops.untrusted import brief
from .convert import Mismatch, convert, describe, is_boolean, is_finite, read_text

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
    if text:
        if value is None and is_boolean(annotation):
            return True
        if value is None:
            raise Mismatch(f"it has no value; expected {describe(annotation)}")
        value = read_text(value, annotation)
    else:
        value = convert(value, annotation)
    if not is_finite(value):
        raise Mismatch(f"{brief(value)} is not finite")
    return value


_hints = cache(get_type_hints)


def fields_of(cls: type) -> list[str]:
    """Return the dotted paths of the fields of a dataclass, and cache its annotations."""
    return list(_leaves(cls))


@cache
def _leaves(cls: type) -> dict[str, tuple[Any, Any]]:
    """Return annotation and default of every field; those of nested dataclasses by dotted path."""
    hints = _hints(cls)
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
    hints = _hints(cls)
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
