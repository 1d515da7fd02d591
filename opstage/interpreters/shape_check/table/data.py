"""A table as plain data, for JSON.

    {"sizes": {name: integer}, "totals": AMOUNTS, "unread_parameters": AMOUNT, "tied": [[path …] …], "blocks": [ITEM …]}

    AMOUNT     an integer, or the text of a formula in the named dims, as a Spec is written: "25*B*T**2 + 4"
    AMOUNTS    {"parameters", "forward_flops", "backward_flops", "update_flops", "forward_bytes", "backward_bytes",
               "update_bytes", "saved_bytes": AMOUNT}
    ITEM       {"kind": "op", "name", "count": 1, "amounts": AMOUNTS, "operands": [TENSOR …], "results": [TENSOR …],
                "location": {"file", "line"} or null}
               {"kind": "block", "name", "path", "count", "amounts": AMOUNTS, "members": [ITEM …]}
    TENSOR     {"path": the parameter or input, else "", "shape": [AMOUNT …], "dtype"}

A block with a count above 1 stands for that many equal neighbours: `name` has their range, `amounts` is the sum over
all of them, `path` and `members` are those of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....ops.dims import Dim
from ....ops.types import dtype_name
from ...folding import Fold, Group, folded
from .amounts import Amounts
from .rows import Operand, Row
from .table import Table

if TYPE_CHECKING:
    from ..report import Report

_NAMES = {"forward": "forward_flops", "backward": "backward_flops", "update": "update_flops", "saved": "saved_bytes"}


def table_as_dict(report: Report) -> dict[str, Any]:
    """Return the table of a report as plain data; see above."""
    table = report.table
    return {
        "sizes": dict(report.sizes),
        "totals": _amounts(table.total),
        "unread_parameters": _dim(table.unread),
        "tied": [list(paths) for paths in table.tied],
        "blocks": _items(table, table.root.members),
    }


def _items(table: Table, members: Sequence[Row | Group[Row]]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for item in folded(members):
        if isinstance(item, Fold) and isinstance(item.members[0], Row):
            items += [_item(table, member) for member in item.members]
        elif isinstance(item, Fold):
            together = {"name": item.name, "count": len(item.members), "amounts": _amounts(table.amounts(item))}
            items.append(_item(table, item.members[0]) | together)
        else:
            items.append(_item(table, item))
    return items


def _item(table: Table, item: Row | Group[Row]) -> dict[str, Any]:
    amounts = _amounts(table.amounts(item))
    if isinstance(item, Group):
        return {
            "kind": "block",
            "name": item.name,
            "path": item.path,
            "count": 1,
            "amounts": amounts,
            "members": _items(table, item.members),
        }
    source = item.place.source if item.place else None
    return {
        "kind": "op",
        "name": item.op,
        "count": 1,
        "amounts": amounts,
        "operands": [_tensor(operand) for operand in item.operands],
        "results": [_tensor(result) for result in item.results],
        "location": source and {"file": source.file, "line": source.line},
    }


def _tensor(tensor: Operand) -> dict[str, Any]:
    shape, dtype = tensor.type
    return {"path": tensor.path, "shape": [_dim(dim) for dim in shape], "dtype": dtype_name(dtype)}


def _amounts(amounts: Amounts) -> dict[str, Any]:
    return {_NAMES.get(name, name): _dim(amount) for name, amount in amounts._asdict().items()}


def _dim(dim: Dim) -> int | str:
    return dim if isinstance(dim, int) else str(dim)
