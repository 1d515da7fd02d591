"""Input columns with names: numbered, or one-hot encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from ..config.spelling import spelled
from ..ops.errors import UsageError
from .cast import Array
from .table import DataTable, numbered, side_by_side

CategoriesName: TypeAlias = Literal["auto", "number", "one_hot"]
Categories: TypeAlias = "tuple[tuple[str, ...], ...]"
"""For each column the names in the order of their numbers, or () for a column of numbers; () if no column has names."""

MOST_ONE_HOT = 1000
"""The most names in a column that is one-hot encoded: a column of identifiers is not categorical."""


def learn_categories(table: DataTable, columns: Sequence[str], how: CategoriesName) -> Categories:
    """Return the sorted names in each column. Raises UsageError if a one-hot column has more than `MOST_ONE_HOT`."""
    found = tuple(_sorted_names(table, column) for column in columns)
    for column, names in zip(columns, found):
        if how == "one_hot" and len(names) > MOST_ONE_HOT:
            raise UsageError(
                f"{table.path}: column {column} holds {len(names):,} different names, of which one_hot would make a "
                f"column each; at most {MOST_ONE_HOT:,}: leave it out, or number them, "
                f"{spelled({'data.categories': 'number'})}"
            )
    return found if any(found) else ()


def encode(table: DataTable, columns: Sequence[str], categories: Categories, *, one_hot: bool) -> Array:
    """Return float64 (rows, widths): the columns side by side, names as numbers or one-hot.

    Raises UsageError, with row and column, for an unknown name.
    """
    parts = []
    for column, names in zip(columns, categories or [()] * len(columns)):
        if not names:
            parts.append(side_by_side(table, [column]))
            continue
        numbers, _ = numbered(table, column, names, "category")
        parts.append(np.eye(len(names))[numbers] if one_hot else numbers[:, np.newaxis])
    return np.concatenate(parts, axis=1, dtype=np.float64)


def encoded_columns(categories: Categories, *, one_hot: bool) -> tuple[int, ...]:
    """Return the positions of `encode`'s columns that encode names."""
    widths = [len(names) if names and one_hot else 1 for names in categories]
    named = np.repeat([bool(names) for names in categories], widths)
    return tuple(np.flatnonzero(named).tolist())


def _sorted_names(table: DataTable, column: str) -> tuple[str, ...]:
    values = table.columns[column]
    return tuple(sorted(set(values))) if isinstance(values, list) else ()
