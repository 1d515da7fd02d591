"""Columns of names among the inputs: numbered, or a column of 0 and 1 for each name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from ..config.spelling import spelled
from ..ops.errors import UsageError
from .cast import Array
from .table import DataTable, numbered

CategoriesName: TypeAlias = Literal["auto", "number", "one_hot"]
Categories: TypeAlias = "tuple[tuple[str, ...], ...]"
"""For each column its names in the order of their numbers, () for a column of numbers; () where no column has names."""

MOST_ONE_HOT = 1000
"""Names of one column of which one_hot makes columns: a column of identifiers is not a column of categories."""


def learn_categories(table: DataTable, columns: Sequence[str], how: CategoriesName) -> Categories:
    """The names in each column, sorted. Raises UsageError for more than `MOST_ONE_HOT` that would be a column each."""
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
    """float64 (rows, widths): the columns side by side, names as their numbers, or as 1 in the column of the name.

    Raises UsageError, with row and column, for a name that is none of the categories.
    """
    parts = []
    for column, names in zip(columns, categories or [()] * len(columns)):
        if not names:
            parts.append(table.numbers(column)[:, np.newaxis])
            continue
        numbers, _ = numbered(table, column, names, "category")
        parts.append(np.eye(len(names))[numbers] if one_hot else numbers[:, np.newaxis])
    return np.concatenate(parts, axis=1, dtype=np.float64)


def encoded_columns(categories: Categories, *, one_hot: bool) -> tuple[int, ...]:
    """The positions of `encode`'s columns that are made of names."""
    widths = [len(names) if names and one_hot else 1 for names in categories]
    named = np.repeat([bool(names) for names in categories], widths)
    return tuple(np.flatnonzero(named).tolist())


def _sorted_names(table: DataTable, column: str) -> tuple[str, ...]:
    values = table.columns[column]
    return tuple(sorted(set(values))) if isinstance(values, list) else ()
