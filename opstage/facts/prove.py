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
from .dependence import Dependence, Fact
from .dependence.fact import Span, through
from .dependence.regions import NONE
from .dependence.sizes import same
from .interpret import Interpretation

ASSUMPTIONS = ("no op raises, and 0.0 and -0.0 count as equal",)
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
    domain = Dependence(dim, report.program.names)
    run = Interpretation([domain], report.program.scope)
    sources = [(domain.source(name, body.types[slot]),) for name, slot in zip(report.program.names, body.inputs)]
    facts: list[Any] = [known and known[0] for known in run.run(body, sources)]
    if body.outputs and all(_keeps(facts[slot], dim, claim) for slot in body.outputs):
        return ClaimVerdict(claim, "proved", assumptions=(*ASSUMPTIONS, *domain.assumptions))
    op, source = "", None
    for equation in body.equations:
        clean = all(_is_clean(facts[slot], claim) for slot in equation.inputs)
        if clean and not all(_is_clean(facts[slot], claim) for slot in equation.outputs):
            op, source = equation.primitive.name, report.program.source(equation)
            break
    witness = _witness(program, specs, report, claim)
    if witness is not None:
        return ClaimVerdict(claim, "refuted", op, source, witness, "the program was run: the output moved")
    missing = f"no rule says what {op} reads along {claim.axis}" if op else f"an output has no axis {claim.axis}"
    return ClaimVerdict(claim, "undecided", op, source, None, missing)


def _is_clean(fact: Fact, claim: Claim) -> bool:
    """Whether elements read, by each of their indices, what the claim permits."""
    return not fact.whole and all(claim.allows(span) for _, span in fact.reads)


def _keeps(fact: Fact, dim: Dim, claim: Claim) -> bool:
    """Whether all that an element reads is permitted beside one of its indices along the dim."""
    if fact.idle:
        return True
    return not fact.whole and any(
        same(size, dim) and all(_permitted(fact, i, span, at, claim) for i, span in fact.reads)
        for at, size in enumerate(fact.sizes)
    )


def _permitted(fact: Fact, index: int, span: Span, at: int, claim: Claim) -> bool:
    if index in (at, NONE):
        return claim.allows(span)
    others = [i for i in range(len(fact.sizes)) if i != at]
    entries = through(span, index, fact, others)
    return entries is not None and all(claim.allows(found) for _, found in entries)


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
