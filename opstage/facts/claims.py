"""Claims about a checked program: proved by the dependence of its outputs, or refuted by a run in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ..analysis.dependence import MASKED_ROW as MASKED
from ..analysis.dependence import Dependence, Fact
from ..analysis.dependence.fact import Span, eliminate_index
from ..analysis.dependence.regions import NONE, at_most_proved, equal_proved
from ..analysis.domain import Domain
from ..analysis.interpretation import Interpretation
from ..analysis.levels import Levels
from ..analysis.ranges import Ranges, input_bounds
from ..interpreters.registry import make_interpreter
from ..interpreters.shape_check.finding import MASKED_ROW, ClaimVerdict, Finding
from ..interpreters.shape_check.program import CheckedProgram
from ..interpreters.shape_check.report import Assumption, Report, allowed_sizes, program_at
from ..ops.body import Body, Equation
from ..ops.dims import Dim, DimExpr
from ..ops.dims.relation import build_claim
from ..ops.errors import OpstageError, nearest
from ..ops.spec import AlongAxis, Causal, Claim, Ignores, Uses, Window
from ..ops.types import EXACT, FLOAT32, FLOAT64, TensorType, dtype_name
from ..options import Options
from ..transforms.tracer import constants, evaluate
from .range_report import range_domain

ASSUMPTIONS = ("ops do not raise", "0.0 and -0.0 count as equal")


Bounds: TypeAlias = "Mapping[str, tuple[float, float]]"


def with_claims(
    report: Report, claims: Sequence[Claim], bounds: Bounds | None = None, dtype: str | None = None
) -> Report:
    """Return the report with a verdict on each claim; claims that are not proved are errors, fully masked rows
    warnings.

    Every input with the named axis is a source, including parameters. `bounds` are those of `ranges_of`. Together with
    the declarations of Specs they decide what a finite mask hides, in the program's dtype or in `dtype`, such as
    float16, where -1e9 is -inf. A claim is refuted by a run in float64 for any dtype.

    Raises:
        UsageError: invalid bounds, bounds of an unknown input, or a dtype without ranges.
    """
    if not claims:
        return report
    if bounds or dtype is not None:
        range_domain(report.program, bounds, dtype)
    if report.errors or report.conditions:
        why = "has errors" if report.errors else "is correct only under conditions"
        verdicts = [ClaimVerdict(claim, "undecided", reason=f"the program {why}") for claim in claims]
        return replace(report, claims=(*report.claims, *verdicts))
    known: dict[str | None, _Known] = {}
    verdicts = []
    fractions = report.program.dtype == EXACT  # which have no ranges

    def ranges() -> Ranges | None:
        return None if fractions else range_domain(report.program, bounds, dtype)

    for claim in claims:
        axis = None if isinstance(claim, (Uses, Ignores)) else claim.axis
        if axis not in known:
            followed = [each.name for each in claims if isinstance(each, (Uses, Ignores))]
            known[axis] = _facts(report, axis, followed, ranges())
            # Ranges alone show what a finite mask hides, and they cost more.
            if known[axis].notes and not fractions and not _is_proved(report, axis, known[axis], claims):
                known[axis] = _facts(report, axis, followed, ranges(), asked=True)
        if isinstance(claim, (Uses, Ignores)):
            verdicts.append(_check_input_claim(report, claim, known[axis], bounds))
        else:
            verdicts.append(_check_axis_claim(report, claim, known[axis], bounds))
    remarks = {finding: None for each in known.values() for finding in each.masked}
    errors = [found for verdict in verdicts if (found := verdict.finding) is not None]
    return replace(
        report,
        claims=(*report.claims, *verdicts),
        errors=(*report.errors, *errors),
        warnings=(*report.warnings, *remarks),
    )


class _Known(NamedTuple):
    """The facts of every slot along one dim, None if no size has its name, and findings of the run."""

    dim: DimExpr | None
    facts: Sequence[Fact]
    domain: Dependence
    masked: Sequence[Finding]
    notes: Sequence[str]
    given: Sequence[str]  # the assumptions of its ranges

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Return the assumptions of proofs by these facts."""
        return (*ASSUMPTIONS, *self.domain.assumptions, *self.given)


def _facts(
    report: Report, axis: str | None, followed: Sequence[str], ranges: Ranges | None, asked: bool = False
) -> _Known:
    """Return the facts along an axis, or without one the facts of which `followed` inputs are read.

    Inputs that are not distinguished make layers equal, which then cost one. Ranges are computed if `asked`.
    """
    program = report.program
    body = program.body
    every = [size for slot in body.inputs for size in body.types[slot].shape]
    found = next((size for size in every if isinstance(size, DimExpr) and str(size) == axis), None)
    dim = found if axis in program.scope.names else None  # a size that is a number, or a formula, does not name an axis
    told = [name for name in program.names if axis is None and any(_names_input(name, each) for each in followed)]
    domain = Dependence(dim, told) if ranges is None else Dependence(dim, told, dtype_limits=ranges.dtype_limits)
    masked: dict[Finding, None] = {}
    notes: dict[str, None] = {}

    def after(equation: Equation) -> None:
        for rule, text in domain.remarks:
            if rule == MASKED:
                source = program.source(equation)
                masked[Finding(equation.primitive.name, text, source=source, rule=MASKED_ROW, severity="warning")] = (
                    None
                )
            else:
                notes[text] = None
        domain.remarks.clear()

    domains: list[Domain[Any]] = [domain]
    if ranges is not None and asked:
        ranges.run = Interpretation([ranges], program.scope)
        domains += [ranges, Levels(ranges)]
    run = Interpretation(domains, program.scope)
    sources = [
        tuple([each.source(name, body.types[slot]) for each in domains])
        for name, slot in zip(program.names, body.inputs)
    ]
    facts: list[Any] = [known and known[0] for known in run.run(body, sources, after)]
    given = (*ranges.given, *ranges.assumptions) if ranges is not None and asked else ()
    if ranges is not None and ranges.limits.name != dtype_name(program.dtype):
        given = (f"each op is rounded to {ranges.limits.name}, once", *given)
    return _Known(dim, facts, domain, tuple(masked), tuple(notes), given)


def _is_proved(report: Report, axis: str | None, known: _Known, claims: Sequence[Claim]) -> bool:
    """Return whether these facts prove all claims about an axis."""
    dim = known.dim
    return dim is not None and all(
        _keeps(known.facts[slot], dim, claim)
        for claim in claims
        if not isinstance(claim, (Uses, Ignores)) and claim.axis == axis
        for slot in report.program.body.outputs
    )


# Along an axis ------------------------------------------------------------------------------------------------------


def _check_axis_claim(report: Report, claim: AlongAxis, known: _Known, bounds: Bounds | None) -> ClaimVerdict:
    body, facts, dim = report.program.body, known.facts, known.dim
    if dim is None:
        named = nearest(claim.axis, report.program.scope.names)
        return ClaimVerdict(
            claim, "undecided", reason=f"the named dim {claim.axis} is not an axis of any argument{named}"
        )
    if body.outputs and all(_keeps(facts[slot], dim, claim) for slot in body.outputs):
        return ClaimVerdict(claim, "proved", assumptions=known.assumptions)
    at = _first(report, facts, lambda fact: not fact.whole and all(_allows(claim, span) for _, span in fact.reads))
    op, source = ("", None) if at is None else (at.primitive.name, report.program.source(at))
    found, trouble = _search(report, claim.axis, bounds, lambda r: breach(r, claim, range(len(body.inputs)), dim))
    if found is not None:
        t, s = (f"{claim.axis}={index}" for index in found[:2])
        reason = f"the output at {t} moved with the input at {s}, in a run at {_show_sizes(found)}"
        return ClaimVerdict(claim, "refuted", op, source, found[:2], found.sizes, reason)
    missing = (
        f"the reads of {op} along {claim.axis} are not proved to satisfy it"
        if op
        else f"an output that depends on the inputs lacks the axis {claim.axis} of the claim"
    )
    return ClaimVerdict(claim, "undecided", op, source, reason="; ".join([missing, *known.notes, *trouble]))


def _allows(claim: AlongAxis, span: Span) -> bool:
    """Return whether a claim permits the sources of a span: relative to an index, or absolute if `by` is 0."""
    if isinstance(claim, Causal):
        return span.by in (0, 1) and span.high is not None and at_most_proved(span.high, 0)
    distance = claim.size if isinstance(claim, Window) else 0
    if span.by != 1 or span.low is None or span.high is None:
        return False
    return at_most_proved(-distance, span.low) and at_most_proved(span.high, distance)


def _keeps(fact: Fact, dim: DimExpr, claim: AlongAxis) -> bool:
    """Return whether the claim permits all that an element reads, relative to one of its indices along the dim."""
    if fact.idle:
        return True
    return not fact.whole and any(
        equal_proved(size, dim) and all(_permitted(fact, i, span, at, claim) for i, span in fact.reads)
        for at, size in enumerate(fact.sizes)
    )


def _permitted(fact: Fact, index: int, span: Span, at: int, claim: AlongAxis) -> bool:
    if index in (at, NONE):
        return _allows(claim, span)
    others = [i for i in range(len(fact.sizes)) if i != at]
    entries = eliminate_index(span, index, fact, others)
    return entries is not None and all(_allows(claim, found) for _, found in entries)


def _first(report: Report, facts: Sequence[Fact], clean: Callable[[Fact], bool]) -> Equation | None:
    """Return the first op whose operands are clean and whose results are not."""
    for equation in report.program.body.equations:
        if all(clean(facts[slot]) for slot in equation.inputs) and not all(clean(facts[s]) for s in equation.outputs):
            return equation
    return None


# An input as a whole --------------------------------------------------------------------------------------------------


def _show_sizes(found: Found) -> str:
    return ", ".join(f"{name}={size}" for name, size in found.sizes)


def _names_input(path: str, name: str) -> bool:
    """Return whether an input is called `name`, or is a part of it."""
    return path == name or path.startswith((f"{name}.", f"{name}["))


def _check_input_claim(report: Report, claim: Uses | Ignores, known: _Known, bounds: Bounds | None) -> ClaimVerdict:
    body, names = report.program.body, report.program.names
    inputs = [i for i, name in enumerate(names) if _names_input(name, claim.name)]
    if not inputs:
        return ClaimVerdict(claim, "undecided", reason=f"input {claim.name} is unknown{nearest(claim.name, names)}")
    bits = sum([1 << known.domain.names.index(names[i]) for i in inputs])
    facts, positive = known.facts, isinstance(claim, Uses)
    if not any(facts[slot].inputs & bits for slot in body.outputs):
        if positive:
            return ClaimVerdict(claim, "refuted", reason=f"outputs do not depend on {claim.name} at any size")
        return ClaimVerdict(claim, "proved", assumptions=known.assumptions)

    def look(runs: Runs) -> Found | None:
        return Found(0, 0, tuple(runs.sizes.items())) if reads(runs, inputs) else None

    found, trouble = _search(report, None, bounds, look)
    at = _first(report, facts, lambda fact: not fact.inputs & bits) or next(
        (e for e in body.equations if any(body.inputs[i] in e.inputs for i in inputs)), None
    )
    op, source = ("", None) if at is None or positive else (at.primitive.name, report.program.source(at))
    if found is not None:
        said = f"an output moved with {claim.name}, in a run{' at ' if found.sizes else ''}{_show_sizes(found)}"
        return ClaimVerdict(claim, "proved" if positive else "refuted", op, source, None, found.sizes, said)
    missing = f"an output may depend on {claim.name}, and no run showed it"
    return ClaimVerdict(claim, "undecided", op, source, reason="; ".join([missing, *known.notes, *trouble]))


def _search(
    report: Report, dim: str | None, bounds: Bounds | None, look: Callable[[Runs], Found | None]
) -> tuple[Found | None, tuple[str, ...]]:
    """Return what a run at small sizes finds, and the reasons if it finds nothing."""
    try:
        tried = False
        for runs in sample_runs(report.program, report.conditions, dim, bounds):
            tried = True
            found = look(runs)
            if found is not None:
                return found, ()
        return None, () if tried else ("sizes at which it runs were not found",)
    except TooLarge:
        return None, ("the program is too large for a run; claim it of a smaller configuration",)
    except (OpstageError, ValueError, TypeError, KeyError, MemoryError) as error:
        return None, (f"it could not be run: {error}",)


# Refutation of a claim by runs: change the inputs at one index, in float64, and compare the outputs -------------------

_SIZES = (4, 5, 3, 6, 8, 2, 12, 16, 32, 1)
_MOST_ELEMENTS = 20_000_000
_ATTEMPTS = 3
_AGAIN = 3  # runs of the same inputs, to ignore differences that memory alignment causes

Array = npt.NDArray[Any]
Ends: TypeAlias = tuple[float, float]
"""The bounds of an input."""


@final
class TooLarge(Exception):
    """The program has more elements than a run for a claim may have."""


class Found(NamedTuple):
    """A run at `sizes`, in which the outputs at `target` moved with the inputs at `source`."""

    target: int
    source: int
    sizes: tuple[tuple[str, int], ...]


class Runs:
    """A program at small sizes, ready to run."""

    def __init__(self, program: CheckedProgram, sizes: Mapping[str, int], ends: Sequence[Ends]):
        self.named = program.body
        self.names = program.names
        self.ends = ends
        self.sizes = dict(sizes)
        self.body = _in_float64(program_at(program, sizes).body)
        shapes: list[Any] = [type_.shape for type_ in self.body.input_types]
        if sum([math.prod(map(int, shape)) for shape in shapes]) > _MOST_ELEMENTS:
            raise TooLarge
        self._ops = make_interpreter(Options(dtype="float64"))
        self._held = constants(self._ops, self.body)

    def outputs(self, values: Sequence[Array]) -> list[Array]:
        """Return the outputs for these inputs."""
        refs = [self._ops.const(value, dtype=value.dtype) for value in values]
        with np.errstate(all="ignore"):
            found = evaluate(self._ops, self.body, refs, self._held)
        return [np.array(self._ops.get(ref)) for ref in found]

    def inputs(self, attempt: int) -> list[Array]:
        """Return the inputs of an attempt: normal floats, uniform ones for inputs with bounds; integers are 0 or 1,
        valid indices.

        Further attempts have positive floats, or small floats with positive vectors, as scales and variances are.
        """
        rng = np.random.default_rng(attempt)
        found: list[Array] = []
        for name, type_, (low, high) in zip(self.names, self.body.input_types, self.ends):
            shape: Any = type_.shape
            if type_.dtype.kind != "f":
                least = int(max(low, 0.0))
                most = min(least + 1, high) if name else least
                found.append(rng.integers(least, int(most) + 1, size=shape).astype(type_.dtype))
            elif math.isfinite(high - low):
                found.append(np.asarray(rng.uniform(low, high, size=shape)))
            elif low > -math.inf or high < math.inf:
                away = np.abs(rng.normal(size=shape))
                found.append(np.asarray(low + away if low > -math.inf else high - away))
            elif attempt == 1 or (attempt == 2 and len(shape) < 2):
                found.append(np.asarray(rng.uniform(0.5, 1.5, size=shape)))
            else:
                found.append(np.asarray(rng.normal(size=shape) * (0.1 if attempt == 2 else 1.0)))
        return found

    def attempts(self) -> Iterator[tuple[int, list[Array], Callable[[Sequence[Array]], list[Array]]]]:
        """Yield each attempt: its number, its inputs, and a function that returns which output elements change for
        other inputs.

        Elements that change between runs on the same inputs do not count.
        """
        for attempt in range(_ATTEMPTS):
            values = self.inputs(attempt)
            first = self.outputs(values)
            again = [self.outputs([value.copy() for value in values]) for _ in range(_AGAIN)]
            steady = [np.all([_alike(x, y) for y in others], axis=0) for x, *others in zip(first, *again)]

            def changed(
                values: Sequence[Array], first: Sequence[Array] = first, steady: Sequence[Array] = steady
            ) -> list[Array]:
                return [~_alike(x, y) & same for x, y, same in zip(first, self.outputs(values), steady)]

            yield attempt, values, changed


def sample_runs(
    program: CheckedProgram, conditions: Sequence[Assumption], dim: str | None, bounds: Mapping[str, Ends] | None = None
) -> Iterator[Runs]:
    """Yield the program at a few allowed sizes, with several indices along the dim where possible.

    `bounds` are those of `ranges_of`, which inputs satisfy.
    """
    ends = [input_bounds(name, bounds or {}, program.ranges) for name in program.names]
    names, given = program.scope.names, 0
    for sizes in _candidates(program, names, dim):
        try:
            found = allowed_sizes(program.scope, conditions, sizes, names)
        except OpstageError:
            continue
        yield Runs(program, found, ends)
        given += 1
        if given == 2:
            return


def _candidates(program: CheckedProgram, names: Sequence[str], dim: str | None) -> Iterator[dict[str, int]]:
    for size in _SIZES:
        yield dict.fromkeys(names, size)
    for size in _SIZES:
        for other in _SIZES:
            yield {name: size if name == dim else other for name in names}
    if dim is not None:
        file_size = program.scope.dim(dim)
        at_least_two = build_claim({(): 2}, "<=", file_size.polynomial)
        known = program.scope.witness(at_least_two, wanted=True) or {}
        for other in _SIZES:
            yield {name: known.get(name, other) for name in names}


def breach(runs: Runs, claim: AlongAxis, sources: Sequence[int], axis: Dim) -> Found | None:
    """Return indices at which a run breaks a claim; `sources` are the indices of the inputs that change."""
    places = {i: _axes(runs.named.types[runs.named.inputs[i]].shape, axis) for i in sources}
    places = {i: at for i, at in places.items() if at}
    targets = [_axes(runs.named.types[slot].shape, axis) for slot in runs.named.outputs]
    count = runs.sizes[claim.axis]
    for attempt, values, changed in runs.attempts():
        for source in range(count):
            other = list(values)
            for i, at in places.items():
                other[i] = _changed(values[i], at, source, runs.ends[i], attempt)
            for moved, at in zip(changed(other), targets):
                if len(at) != 1:  # an output with two such axes has no single index
                    continue
                along = moved.any(axis=tuple([other for other in range(moved.ndim) if other != at[0]]))
                for target in np.nonzero(along)[0]:
                    if claim.breaks(source, int(target)):
                        return Found(int(target), source, tuple(runs.sizes.items()))
    return None


def reads(runs: Runs, inputs: Sequence[int]) -> bool:
    """Return whether an output changes with these inputs, when all of them change."""
    for attempt, values, changed in runs.attempts():
        other = [_other(v, runs.ends[i], attempt) if i in inputs else v for i, v in enumerate(values)]
        if any(moved.any() for moved in changed(other)):
            return True
    return False


def _changed(value: Array, axes: Sequence[int], index: int, ends: Ends, attempt: int) -> Array:
    """Return the array with other elements at an index of these axes."""
    new = value.copy()
    for axis in axes:
        part = np.moveaxis(new, axis, 0)[index : index + 1]
        part[...] = _other(part, ends, attempt)
    return new


def _other(value: Array, ends: Ends, attempt: int) -> Array:
    """Return other numbers between the same bounds; further attempts also change their order, which decides choices."""
    low, high = ends
    if value.dtype.kind != "f":
        least = int(max(low, 0.0))
        return np.asarray(np.minimum(2 * least + 1 - value, min(high, 2.0**31))).astype(value.dtype)
    turn = np.cos(np.arange(value.size)).reshape(value.shape)
    move = 0.7 + 0.1 * turn if attempt == 0 else turn + np.copysign(0.1, turn)
    if math.isfinite(high - low):  # further along the interval, modulo its length
        return np.asarray(low + (value - low + move * (high - low)) % (high - low) if high > low else value)
    if low > -math.inf or high < math.inf:
        move = np.abs(move)
    return np.asarray(value - move if high < math.inf else value + move)


def _alike(a: Array, b: Array) -> Array:
    """Return which elements are the same; zeros have no sign, and all nans are equal."""
    same = a == b
    return np.asarray(same | ((a != a) & (b != b)))


def _axes(shape: Sequence[Dim], dim: Dim) -> list[int]:
    """Return the axes whose size is a named dim, or is proved equal to it."""
    return [axis for axis, size in enumerate(shape) if isinstance(size, DimExpr) and equal_proved(size, dim)]


def _in_float64(body: Body) -> Body:
    """Return the same program with float64 in place of float32."""

    def convert_type(type_: TensorType) -> TensorType:
        return TensorType(type_.shape, FLOAT64) if type_.dtype == FLOAT32 else type_

    def convert_equation(equation: Equation) -> Equation:
        static = {name: convert_static(name, value) for name, value in equation.static.items()}
        return equation._replace(static=static)

    def convert_static(name: str, value: Any) -> Any:
        if isinstance(value, Body):
            return _in_float64(value)
        return "float64" if name == "dtype" and value == "float32" else value

    return body.replace(
        types=[convert_type(type_) for type_ in body.types],
        constants=[
            c._replace(value=c.value.astype(np.float64), type=convert_type(c.type)) if c.type.dtype == FLOAT32 else c
            for c in body.constants
        ],
        equations=[convert_equation(e) if e.static else e for e in body.equations],
    )
