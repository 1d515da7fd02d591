"""The ops of a program one by one, with their shapes: what `opstage.check` runs through, as a table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from typing_extensions import override

from ...ops.dims import Dim
from ...ops.primitive import Primitive, Static
from ...ops.spec import as_specs
from ...ops.trees import flatten, paths, unflatten
from ...options import Options
from ..derivatives import run_on_tape
from ..transparent import Transparent
from .interpreter import ShapeOps, ShapeRef


@dataclass(frozen=True)
class OpRow:
    """One op of a program: its region, its operands (parameters by path) and results as text, its flops."""

    region: str
    op: str
    operands: tuple[str, ...]
    results: tuple[str, ...]
    parameters: int
    """Elements of the parameters among the operands."""
    flops: Dim


@final
class _OpTable(Transparent[ShapeRef]):
    """Notes every op that the program itself calls."""

    __slots__ = ("noted",)

    def __init__(self, inner: ShapeOps):
        super().__init__(inner)
        self.noted: list[OpRow] = []

    @override
    def bind(self, primitive: Primitive, refs: tuple[ShapeRef, ...], static: Static, /) -> tuple[ShapeRef, ...]:
        outs = self.inner.bind(primitive, refs, static)
        if not self.cursor.quiet:
            visible = outs[: len(primitive.outputs)]
            cost = primitive.cost(tuple(r.type for r in refs), tuple(o.type for o in outs), static)
            owned = [ref.type.size for ref in refs if ref.origin.startswith("params")]
            self.noted.append(
                OpRow(
                    self.cursor.region.name,
                    primitive.name,
                    tuple(f"{ref.origin} {ref.type}".strip() for ref in refs),
                    tuple(str(ref.type) for ref in visible),
                    sum(size for size in owned if isinstance(size, int)),
                    cost.flops,
                )
            )
        return outs


def op_table(program: Callable[..., Any], *trees: Any, options: Options | None = None) -> tuple[OpRow, ...]:
    """The ops that `program(ops, params, *rest)` calls, in order; arguments are pytrees of Specs, arrays and sizes.

    Raises what the program's first wrong op raises; `opstage.check` collects.
    """
    ops = ShapeOps(options if options is not None else Options())
    specs, structure = flatten(tuple(as_specs(tree) for tree in trees))
    table = _OpTable(ops)
    refs = unflatten(structure, ops.declare(specs, _origins(trees)))
    run_on_tape(table, program, refs, (False,) * len(trees))
    return tuple(table.noted)


def _origins(trees: Sequence[Any]) -> list[str]:
    """`params.` and the path for the first tree's tensors; the others are known by their types."""
    return [
        f"params.{path}".strip(".") if i == 0 else "" for i, tree in enumerate(trees) for path in paths(as_specs(tree))
    ]
