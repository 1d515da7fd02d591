"""`Finding`: one result of a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...ops.errors import SourceLine

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """An error, a `warning` about something odd, or a `note`: what, where, in which tensors."""

    op: str
    reason: str
    region: str = ""
    source: SourceLine | None = None
    operands: tuple[str, ...] = ()
    """The operands that have a name, e.g. `weight is params.blocks.0.w1 (256, 784)`."""
    bindings: tuple[str, ...] = ()
    """Where each named dim of the operands was bound."""
    rule: str = "program"
    """The kind of finding, one of `RULES`."""
    severity: Severity = "error"
    fix: str = ""
    """The fix, as an instruction."""
    constraint: str | None = None
    """The constraint on named dims that would make it right, such as `N % 3 == 0`."""
    calls: tuple[SourceLine, ...] = field(default=(), compare=False)
    """The lines of the user's program that led to `source`, innermost first."""

    def __str__(self) -> str:
        place = f"{self.op} at {self.source}" if self.source else self.op
        lines = [f"{place}{f' ({self.region})' if self.region else ''}: {self.reason}"]
        if self.source and self.source.text:
            lines.append(f"    {self.source.text}")
            if self.source.carets:
                lines.append(f"    {self.source.carets}")
        lines += [f"  called at {call}: {call.text}" for call in self.calls]
        lines += [f"  {operand}" for operand in self.operands]
        lines += [f"  {binding}" for binding in self.bindings]
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        return "\n".join(lines)
