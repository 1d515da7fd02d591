"""Assign columns of a table to arguments, as spelled in settings: `x=weight,height; kind=species`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from ..ops.errors import UsageError, brief, nearest, shown
from .table import label_position, require_columns

REST = "*"
"""All columns that are not named elsewhere."""


def read_columns(text: str) -> dict[str, tuple[str, ...]]:
    """Parse a map from argument to columns. Raises UsageError for other text, and for a name that occurs twice."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(str.strip, text.split(";")):
        argument, equals, columns = (each.strip() for each in part.partition("="))
        names = tuple(name.strip() for name in columns.split(","))
        if not (equals and argument and all(names)):
            raise UsageError(
                f"columns must be ARGUMENT=COLUMN,COLUMN; ARGUMENT=…, as in 'x=weight,height; z=kind', but holds "
                f"{brief(part.strip())}"
            )
        if argument in found:
            raise UsageError(f"columns name the argument {argument!r} twice; name it once, with all its columns")
        found[argument] = names
    named = [name for names in found.values() for name in names]
    times = Counter(named)
    for name in named:
        if times[name] > 1:
            raise UsageError(f"columns name {name!r} twice; a column goes to one place of one argument")
    return found


def assign(
    path: str | os.PathLike[str],
    given: dict[str, tuple[str, ...]],
    names: Sequence[str],
    arguments: Sequence[str],
    labels: Sequence[str],
    label: str,
) -> dict[str, tuple[str, ...]]:
    """Return the columns of each argument, in the order of `arguments`, for a file with the columns `names`.

    An argument that is not in `given` gets the column of the same name; a label without one gets `label`, or the column
    of `label_position`. Raises UsageError for an unknown argument or column, and for one without columns.
    """
    for argument in given:
        if argument not in arguments:
            raise UsageError(
                f"{path}: data.columns names {argument!r}, which is not an argument of the model"
                f"{nearest(argument, arguments)}; it takes {shown(arguments)}"
            )
    found: dict[str, tuple[str, ...]] = {}
    for argument in arguments:
        if argument in given:
            found[argument] = given[argument]
        elif argument in labels and label:
            found[argument] = (label,)
        elif argument in names:
            found[argument] = (argument,)
        elif argument in labels:
            found[argument] = (names[label_position(path, names, None, True)],)
        else:
            raise UsageError(
                f"{path}: data.columns says no columns for {argument!r}, and none has its name; add "
                f"'; {argument}=COLUMN,…'. The columns are {shown(names)}"
            )
    taken = [name for columns in found.values() for name in columns if name != REST]
    for argument, columns in found.items():
        if REST in columns:
            at, rest = columns.index(REST), [name for name in names if name not in taken]
            if not rest:
                raise UsageError(f"{path}: data.columns gives {argument!r} the columns left over, and none is")
            found[argument] = (*columns[:at], *rest, *columns[at + 1 :])
    every = [name for columns in found.values() for name in columns]
    times = Counter(every)
    for name in every:
        if times[name] > 1:
            raise UsageError(f"{path}: column {name!r} would go to two places; say with data.columns where it belongs")
    require_columns(path, names, every)
    return found
