"""`Finding`: one result of a check; `ClaimVerdict`: that of a claim about what a program's outputs read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ...ops.errors import SourceLine
from ...ops.spec import Claim

Severity = Literal["error", "warning", "note"]

ONE_BY_ONE = "vmap-loop"


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


RANGE_RULES = {
    "overflow": "A result may be larger than the numbers of the dtype, and so infinite.",
    "integer-overflow": "An integer may be beyond its dtype, and wrap around.",
    "division-by-zero": "A divisor may be 0.",
    "log-of-zero": "A logarithm may be taken of 0 or of what is below it.",
    "sqrt-of-negative": "A root may be taken of what is below 0.",
    "outside-of-domain": "An inverse function may be taken of what is outside of its domain.",
    "unbounded": "No bound of a result is known, so it may be infinite or nan.",
    "nan-behind-select": "A select drops what is infinite or nan, but its gradient is 0 times infinity.",
    "cancellation": "A difference of nearly equal numbers loses most of its digits.",
    "index-out-of-range": "An index may be outside of the rows that it names.",
}
"""A sentence on each rule of value ranges."""


# Claims ---------------------------------------------------------------------------------------------------------------


UNPROVED = "unproved"
MASKED_ROW = "masked-row"

CLAIM_RULES = {
    "causal": "An output reads an input at a later index of an axis that was claimed to be causal.",
    "independent": "An output reads an input at another index of an axis whose entries were claimed to be independent.",
    "window": "An output reads an input that lies outside of the window that was claimed.",
    "uses": "No output depends on an input that was claimed to be used.",
    "ignores": "An output depends on an input that was claimed to be ignored.",
    UNPROVED: "A claim was neither proved for every size nor refuted by a run.",
    MASKED_ROW: "A mask leaves a row without an entry: its softmax is nan, and after a finite mask uniform.",
}
"""A sentence on each rule of claims."""

_FIXES = {
    "causal": "keep later entries out: causal=True in attention, a mask of -inf before a softmax, padding on the left",
    "independent": "reduce and normalise over the other axes alone; batch_norm reads the whole batch in training form",
    "window": "widen the claim, or mask what lies outside of the window with -inf before a softmax",
    "uses": "use it, or take it out of the arguments",
    "ignores": "take it out of what the outputs are computed from",
}


@dataclass(frozen=True)
class ClaimVerdict:
    """claim      the claim it is about
    state       "proved" for every allowed size, "refuted", or "undecided"
    op, source  the first op after which the claim is not known to hold, and its line
    witness     (t, s): in a run, the output at t moved when the inputs at s did
    sizes       the sizes of that run
    reason      why it is not proved, and what is missing
    assumptions the assumptions of a proof
    """

    claim: Claim
    state: Literal["proved", "refuted", "undecided"]
    op: str = ""
    source: SourceLine | None = None
    witness: tuple[int, int] | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    reason: str = ""
    assumptions: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f", at {self.op}" if self.op else ""
        line = f" ({self.source})" if self.source is not None else ""
        given = f", as far as {'; '.join(self.assumptions)}" if self.assumptions else ""
        why = f": {self.reason}" if self.reason else ""
        return f"{self.claim} is {self.state}{given}{where}{line}{why}"

    @property
    def finding(self) -> Finding | None:
        """The error for the verdict, or None if it is proved."""
        if self.state == "proved":
            return None
        refuted = self.state == "refuted"
        return Finding(
            self.op or "program",
            f"{self.claim} is {self.state}: {self.reason}",
            source=self.source,
            rule=self.claim.rule if refuted else UNPROVED,
            fix=_FIXES[self.claim.rule] if refuted else "",
        )


def verdicts_as_data(verdicts: Sequence[ClaimVerdict]) -> list[dict[str, Any]]:
    """Return verdicts as plain JSON data."""
    return [
        {
            "claim": str(verdict.claim),
            "state": verdict.state,
            "op": verdict.op,
            "witness": None if verdict.witness is None else list(verdict.witness),
            "sizes": dict(verdict.sizes),
            "reason": verdict.reason,
            "assumptions": list(verdict.assumptions),
        }
        for verdict in verdicts
    ]


def verdicts_as_text(verdicts: Sequence[ClaimVerdict]) -> str:
    """Return verdicts for a terminal: a line each, then the assumptions of the proofs."""
    lines = [f"{verdict.claim} is {verdict.state}{_sizes(verdict)}" for verdict in verdicts]
    given = dict.fromkeys(each for verdict in verdicts for each in verdict.assumptions)
    if given:
        lines += ["  given that:", *[f"  - {each}" for each in given]]
    return "\n".join(lines)


def _sizes(verdict: ClaimVerdict) -> str:
    if verdict.state == "proved" and verdict.sizes:
        return f" by a run at {', '.join(f'{name}={size}' for name, size in verdict.sizes)}"
    return " for every size" if verdict.state == "proved" else ""
