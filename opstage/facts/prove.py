"""Claims proved on the checked program, or refuted by running it in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from ..api import check, run
from ..interpreters.shape_check.report import Report
from ..ops.dims import Dim
from ..ops.errors import OpstageError, SourceLine
from ..ops.spec import as_specs, shapes_as_specs
from ..ops.trees import flatten, unflatten
from ..options import Options
from .claims import Claim
from .dependence import Along, Fact, source_fact, transfer

ASSUMPTIONS = ("no op raises, and the values that attention masks are finite: 0 * inf and 0 * nan would be nan",)
_SIZE = 4


@final
@dataclass(frozen=True)
class ClaimVerdict:
    """claim      the claim it is about
    state       "proved" for every allowed size, "refuted" by a run, or "undecided"
    op, source  the first op after which the claim is not known to hold, and its line
    witness     (t, s): the output at t moved when the inputs at s did
    reason      why it is not proved
    assumptions what a proof takes for granted
    """

    claim: Claim
    state: Literal["proved", "refuted", "undecided"]
    op: str = ""
    source: SourceLine | None = None
    witness: tuple[int, int] | None = None
    reason: str = ""
    assumptions: tuple[str, ...] = ASSUMPTIONS


def prove(program: Callable[..., Any], *specs: Any, claims: Sequence[Claim]) -> list[ClaimVerdict]:
    """Decide each claim about `program(ops, *specs)` in evaluation; raises nothing for a program that is wrong.

    Every argument that has the named axis is a source, the parameters too.
    """
    report = check(program, *specs, train=False)
    return [_verdict(program, specs, report, claim) for claim in claims]


def _verdict(program: Callable[..., Any], specs: Sequence[Any], report: Report, claim: Claim) -> ClaimVerdict:
    if not report.ok:
        return ClaimVerdict(claim, "undecided", reason="the program has errors of its own: see opstage.check")
    if report.conditions:
        return ClaimVerdict(claim, "undecided", reason="the program is right only under conditions: see opstage.check")
    body = report.program.body
    every = [size for slot in body.inputs for size in body.types[slot].shape]
    dim = next((size for size in every if str(size) == claim.axis), None)
    if dim is None or claim.axis not in report.program.scope.names:  # a size that is a number names no axis
        return ClaimVerdict(claim, "undecided", reason=f"no argument has an axis of the named dim {claim.axis}")
    facts: list[Fact] = [None] * len(body.types)
    for slot in body.inputs:
        facts[slot] = source_fact(body.types[slot], dim)
    op, source = "", None
    for equation in body.equations:
        read, made = report.program.types(equation.inputs), report.program.types(equation.outputs)
        before = [facts[slot] for slot in equation.inputs]
        for slot, fact in zip(equation.outputs, transfer(equation, before, read, made, dim)):
            facts[slot] = fact
            if not op and not _allowed(fact, claim) and all(_allowed(known, claim) for known in before):
                op, source = equation.primitive.name, report.program.source(equation)
    if body.outputs and all(_holds(facts[slot], body.types[slot].shape, dim, claim) for slot in body.outputs):
        return ClaimVerdict(claim, "proved")
    witness = _witness(program, specs, report, claim)
    if witness is not None:
        return ClaimVerdict(claim, "refuted", op, source, witness, "the program was run: the output moved")
    missing = f"no rule says what {op} reads along {claim.axis}" if op else f"an output has no axis {claim.axis}"
    return ClaimVerdict(claim, "undecided", op, source, None, missing)


def _allowed(fact: Fact, claim: Claim) -> bool:
    return fact is None or (isinstance(fact, Along) and fact.relation in claim.allowed)


def _holds(fact: Fact, shape: Sequence[Dim], dim: Dim, claim: Claim) -> bool:
    """Whether an output with this fact keeps the claim; one whose axis is merged with others does not say so."""
    return fact is None or (isinstance(fact, Along) and _allowed(fact, claim) and str(shape[fact.axis]) == str(dim))


def _witness(program: Callable[..., Any], specs: Sequence[Any], report: Report, claim: Claim) -> tuple[int, int] | None:
    """(t, s) such that the outputs at t change bitwise with the inputs at s, which the claim forbids; None if none."""
    try:
        small = report.at(**dict.fromkeys(report.program.scope.names, _SIZE)).program.body
        named = report.program.body
        _, structure = flatten(tuple(as_specs(shapes_as_specs(spec)) for spec in specs))
        random = np.random.default_rng(0)
        types = [small.types[slot] for slot in named.inputs]
        axes = [_axes(named.types[slot].shape, claim.axis) for slot in named.inputs]
        values = [
            random.normal(size=type_.shape) if type_.dtype.kind == "f" else random.integers(0, 2, size=type_.shape)
            for type_ in types
        ]
        outs = [_axes(named.types[slot].shape, claim.axis) for slot in named.outputs]

        def outputs(leaves: list[Any]) -> list[Any]:
            return flatten(run(program, *unflatten(structure, leaves), options=Options(dtype="float64")))[0]

        first = outputs(values)
        for s in range(_SIZE):
            moved = []
            for value, at, type_ in zip(values, axes, types):
                new = value.copy()
                for axis in at:
                    part = np.moveaxis(new, axis, 0)
                    part[s] = 1 - part[s] if type_.dtype.kind != "f" else part[s] + 1.5
                moved.append(new)
            for before, after, at in zip(first, outputs(moved), outs):
                for axis in at:
                    for t in range(_SIZE):
                        a, b = (np.take(np.asarray(x), t, axis=axis).tobytes() for x in (before, after))
                        if claim.breaks(s, t) and a != b:
                            return t, s
    except (OpstageError, ValueError, TypeError, KeyError):
        return None
    return None


def _axes(shape: Sequence[Dim], name: str) -> list[int]:
    """The axis called `name`, where there is one alone."""
    found = [axis for axis, size in enumerate(shape) if str(size) == name]
    return found if len(found) == 1 else []
