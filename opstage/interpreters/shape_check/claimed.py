"""The verdict on a claim about what a program's outputs read, as stored in a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...ops.claims import Claim
from ...ops.errors import SourceLine
from .finding import Finding

UNPROVED = "unproved"
MASKED_ROW = "masked-row"

RULES = {
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
