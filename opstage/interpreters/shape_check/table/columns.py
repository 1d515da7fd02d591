"""The columns of a table and their contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ....ops.types import show_shape
from ...formula import show_flops, show_formula, show_size
from .amounts import Amounts, is_nothing
from .rows import Row
from .table import Table


class Column(NamedTuple):
    """A heading, and a function from amounts to the text of a cell, possibly empty."""

    heading: str
    show: Callable[[Amounts], str]


def columns_of(table: Table) -> list[Column]:
    """Return the columns that are not empty. The share of the forward pass and the intensity need numbers."""
    whole = table.total
    columns: list[Column] = []
    for heading, field, show in _COLUMNS:
        if not is_nothing(getattr(whole, field)):
            columns.append(Column(heading, _shown(field, show)))
    forward = whole.forward
    if isinstance(forward, int) and forward:
        at = next(i for i, column in enumerate(columns) if column.heading == "forward FLOPs") + 1
        columns.insert(at, Column("share", lambda amounts: _share(amounts, forward)))
    if whole.intensity is not None:
        columns.append(Column("FLOP/byte", _intensity))
    return columns


def result_of(row: Row) -> str:
    """Return the shapes of an op's results."""
    return ", ".join(show_shape(result.type.shape) for result in row.results)


_COLUMNS = (
    ("parameters", "parameters", show_formula),
    ("forward FLOPs", "forward", show_flops),
    ("backward FLOPs", "backward", show_flops),
    ("update FLOPs", "update", show_flops),
    ("bytes moved", "moved", show_size),
    ("bytes saved", "saved", show_size),
)


def _shown(field: str, show: Callable[..., str]) -> Callable[[Amounts], str]:
    def text(amounts: Amounts) -> str:
        amount = getattr(amounts, field)
        return "" if is_nothing(amount) else show(amount)

    return text


def _share(amounts: Amounts, whole: int) -> str:
    forward = amounts.forward
    return f"{100 * forward / whole:.1f} %" if isinstance(forward, int) and forward else ""


def _intensity(amounts: Amounts) -> str:
    return f"{amounts.intensity:.1f}" if amounts.intensity and amounts.flops else ""
