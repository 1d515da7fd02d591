"""What a check found: `Report`, its findings, and the cost of the program as formulas in the named dims."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...ops.dims import Dim
from ...ops.errors import SourceLine
from ...ops.primitive import Cost


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: what, where in the user's program, and in which tensors."""

    op: str
    reason: str
    region: str = ""
    source: SourceLine | None = None
    operands: tuple[str, ...] = ()
    """The operands that have a name, e.g. `weight is params.blocks.0.w1 (256, 784)`."""
    bindings: tuple[str, ...] = ()
    """Where each named dim of the operands was bound."""

    def __str__(self) -> str:
        place = f"{self.op} at {self.source}" if self.source else self.op
        lines = [f"{place}{f' ({self.region})' if self.region else ''}: {self.reason}"]
        if self.source and self.source.text:
            lines.append(f"    {self.source.text}")
        lines += [f"  {operand}" for operand in self.operands]
        lines += [f"  {binding}" for binding in self.bindings]
        return "\n".join(lines)


@dataclass(frozen=True)
class Assumption:
    """A relation between dims that could be neither proved nor refuted; it must hold when the program runs."""

    relation: str
    op: str
    source: SourceLine | None = None
    holds: Callable[[dict[str, int]], bool] | None = field(default=None, compare=False)
    """Whether it holds for given sizes of the named dims."""

    def __str__(self) -> str:
        return f"{self.relation}, needed by {self.op}" + (f" at {self.source}" if self.source else "")


@dataclass(frozen=True)
class Report:
    """The result of `opstage.check`."""

    errors: tuple[Finding, ...]
    conditions: tuple[Assumption, ...]
    outputs: Any
    """The pytree of output types; None when an error hides it."""
    cost: Cost
    """Flops and bytes of everything the program does, in the named dims."""
    ops: int
    """How many primitives the program binds."""
    parameters: Dim = 0
    """Elements in the first argument's float tensors."""
    inputs: tuple[tuple[str, str], ...] = field(default=())
    """Path and type of every input tensor."""

    @property
    def ok(self) -> bool:
        return not self.errors

    def __str__(self) -> str:
        lines: list[str] = []
        for finding in self.errors:
            lines += [f"error: {finding}", ""]
        if self.conditions:
            lines.append("This program is right only if:")
            lines += [f"  {assumption}" for assumption in self.conditions]
        if self.ok:
            flops, moved = _large(self.cost.flops), _large(self.cost.bytes)
            lines.append(f"ok: {self.ops} ops, {flops} flops, {moved} bytes moved")
        else:
            lines.append(f"{len(self.errors)} error" + ("s" if len(self.errors) > 1 else ""))
        return "\n".join(lines)


def _large(value: Dim) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
