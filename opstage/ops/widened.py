"""A note on errors of dtypes: which arguments came in a dtype that a program does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import DtypeError, ValidationError

_NOTE = "and is int64 in a program, whose integers are int32 and int64"

_WIDENED = ("uint8", "uint16", "uint32", "uint64", "int8", "int16")


def note_widened(error: BaseException, *given: Any) -> None:
    """Add a note to an error of dtypes that names the arrays among `given` whose integers became int64.

    Messages name the dtypes that a program has, which are not those of such arrays: pixels are uint8 where they are
    read, and int64 in the program.
    """
    if not isinstance(error, (DtypeError, ValidationError)) or "int64" not in str(error):
        return
    found: list[str] = []
    _search(given, found, 0)
    if not found or any(_NOTE in note for note in getattr(error, "__notes__", ())):  # calls may be nested
        return
    which = ", ".join(dict.fromkeys(found))
    error.add_note(f"{which} was given, {_NOTE}; where floats are meant, give them: x.astype('float32')")


def _search(value: Any, found: list[str], depth: int) -> None:
    dtype = str(getattr(value, "dtype", ""))
    if dtype in _WIDENED:
        shape = tuple(getattr(value, "shape", ()))
        found.append(f"an array {shape} of {dtype}")
    elif depth < 8 and not dtype:
        for inner in _parts(value):
            _search(inner, found, depth + 1)


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple)):
        return value
    arrays = getattr(value, "arrays", ())  # of a Dataset
    return arrays if isinstance(arrays, tuple) else ()
