"""The table of how each parameter is updated: its optimizer, rate and decay, or that it is frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import prod
from typing import Any, final

from ..ops.trees import show_path
from ..ops.types import Shape, show_shape
from .groups import BoundGroups
from .optimizer import Optimizer, peak


@final
@dataclass(frozen=True)
class MovedParameter:
    """A parameter and its hyperparameters; `lr` is the peak of a schedule, or None if that has none.

    rules   the patterns of its groups
    """

    path: str
    shape: Shape
    frozen: bool
    optimizer: str
    lr: Any
    weight_decay: Any
    rules: tuple[str, ...]

    @property
    def numbers(self) -> str:
        """Format as `adamw, lr 0.001, weight_decay 0.01`, or `frozen`."""
        if self.frozen:
            return "frozen"
        lr = "scheduled" if self.lr is None else f"{self.lr:.6g}"
        decay = "" if self.weight_decay is None else f", weight_decay {self.weight_decay:.6g}"
        return f"{self.optimizer}, lr {lr}{decay}"


def group_table(
    optimizer: Optimizer, names: Sequence[str], shapes: Sequence[Shape], trained: Sequence[bool]
) -> list[MovedParameter]:
    """Return a row for each parameter. `optimizer` must be bound to them, see `Optimizer.bound`."""
    labels = dict(optimizer.which) if isinstance(optimizer, BoundGroups) else {}
    rows = []
    for name, shape, wanted in zip(names, shapes, trained, strict=True):
        mover = optimizer.at(name).mover(shape)
        rules = optimizer.labels[labels[name]] if isinstance(optimizer, BoundGroups) else ()
        decay = getattr(mover, "weight_decay", None)
        rows.append(MovedParameter(name, shape, not wanted, mover.name, peak(mover.lr), decay, rules))
    return rows


def group_lines(rows: Sequence[MovedParameter]) -> list[str]:
    """Return a line for each group: `*.bias: 4 tensors, 1,024 parameters: adamw, lr 0.001, weight_decay 0`."""
    groups: dict[tuple[tuple[str, ...], str], list[MovedParameter]] = {}
    for row in rows:
        groups.setdefault((row.rules, row.numbers), []).append(row)
    lines = []
    for (rules, numbers), members in groups.items():
        count = sum(prod(row.shape) for row in members)
        tensors = f"{len(members)} tensor{'s' if len(members) > 1 else ''}, {count:,} parameters"
        lines.append(f"{' and '.join(rules) or 'in no group'}: {tensors}: {numbers}")
    return lines


_HEAD = ("parameter", "shape", "optimizer", "rate", "decay", "groups")


def _cells(row: MovedParameter) -> tuple[str, ...]:
    rate = "scheduled" if row.lr is None else f"{row.lr:.6g}"
    decay = "" if row.weight_decay is None else f"{row.weight_decay:.6g}"
    moved = ("frozen", "", "") if row.frozen else (row.optimizer, rate, decay)
    return (show_path(row.path), show_shape(row.shape), *moved, ", ".join(row.rules))


def group_text(rows: Sequence[MovedParameter]) -> str:
    """Return the table as text, with a line for each parameter."""
    lines = [_HEAD, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def group_html(rows: Sequence[MovedParameter]) -> str:
    """Return the table as HTML."""
    head = "".join(f"<th>{name}</th>" for name in _HEAD)
    body = "".join(
        "<tr>" + "".join(f'<td class="code">{escape(cell)}</td>' for cell in _cells(row)) + "</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
