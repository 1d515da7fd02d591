"""How the loss of a batch follows from terms of its rows, derived from the traced loss, not from its values.

The loss is traced with a prime number of rows, which no other axis has, so that every axis of rows is known by its
size. Each tensor is then fixed (no batch in it), of rows (each row from that row alone), a sum over rows, a ratio of
such a sum and one of the data alone, or mixed, which is all else. What is mixed may still join: nobody has proved it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from types import MappingProxyType
from typing import Any, NamedTuple, final

from ..interpreters.captures import Capture, Guard, observed
from ..interpreters.control import bodies_of
from ..interpreters.graph.passes.dead_code import dead_code
from ..interpreters.graph.passes.expansion import expand
from ..interpreters.graph.recorder import record
from ..interpreters.structural import SCAN
from ..interpreters.tracer import constants, evaluate
from ..ops.catalogue.elementwise import DIV
from ..ops.closed import Body, Equation
from ..ops.errors import ProgramError
from ..ops.kinds import Effect, Kind
from ..ops.methods.structure import VARY_LIKE
from ..ops.primitive import Primitive
from ..ops.trees import Structure, unflatten
from ..ops.types import TensorType, is_float
from .row_draws import SAYING, unshared_draw
from .row_numbers import astray, number_of, power_of
from .row_rules import ROW_RULES, SUMMED, Term, TermKind, all_along_one, images, outer

ROWS, SUM, DIVISOR, OTHER, COUNT = "rows", "sum", "divisor", "other divisor", "count"

_PRIMES = (257, 263, 269, 271, 277, 281, 283, 293, 307, 311)
_BATCH_NORM = "batch_norm"
_REMEMBERED = 32
_KEEP_NUMBERS = ("broadcast_to", "reshape", "cast", "scale")
_OTHERWISE = "its sums over rows are joined in another way"


@final
@dataclass(frozen=True)
class Divisor:
    """The divisor of a loss: the sum over rows that an equation of the traced loss computes.

    names      the primitives of the equations up to that one
    quotients  the user's ops, by ordinal from the first, that divide by it
    """

    names: tuple[str, ...]
    quotients: frozenset[int]

    def value(self, ops: Any, program: Callable[..., Any], row: Sequence[Any], types: Sequence[TensorType]) -> Any:
        """Return the divisor for the rows of `row`. The loss is traced again, since Python state that it reads may have
        changed."""
        body = _traced(program, types, ops)
        if tuple(e.primitive.name for e in body.equations[: len(self.names)]) != self.names:
            raise ProgramError(
                "accumulate: the loss computes its number of counted rows in another way for batches of another size; "
                "give that number as a metric, Aux(metrics={'count': …}), and accumulate=Accumulate(…, by='count')"
            )
        slot = body.equations[len(self.names) - 1].outputs[0]
        count = dead_code(body.replace(outputs=(slot,), inputs=body.inputs[: len(types)]))
        return evaluate(ops, count, row, constants(ops, count))[0]


def counts(ops: Any, weight: Any, loss: Any) -> Any:
    """Whether anything counts in a mean of this weight: not in 0/0. Weights of both signs may add up to less than 0, or
    to 0, and the mean is then infinite: a batch that has such a part has no number that is right."""
    nothing = ops.full(shape=weight.shape, value=0.0, dtype=weight.dtype)
    return ops.logical_not(ops.logical_and(ops.equal(weight, nothing), ops.logical_not(ops.equal(loss, loss))))


class Joining(NamedTuple):
    """The proofs about a loss and its metrics.

    loss      how the loss of a batch follows from those of its parts: as a mean weighed by ROWS, a SUM, a mean weighed
              by the DIVISOR; empty if nothing is proved; `reason` then says why
    metrics   the same for each metric, by name; OTHER for a mean weighed by one of `divisors`, COUNT for a multiple of
              the number of rows; `unknown` has why nothing is proved of one
    counts    the metrics that equal the divisor
    draws     a draw that would be the same for the rows of all ranks; empty if there is none
    """

    loss: str
    divisor: Divisor | None = None
    reason: str = ""
    metrics: Mapping[str, str] = MappingProxyType({})
    counts: frozenset[str] = frozenset()
    draws: str = ""
    unknown: Mapping[str, str] = MappingProxyType({})
    divisors: Mapping[str, Divisor] = MappingProxyType({})


def joining(
    program: Callable[..., Any], types: Sequence[TensorType], batch: slice, ops: Any, counts: Iterable[int] = ()
) -> Joining:
    """Prove how a flat program of (loss, metrics) combines; `batch` says which of its inputs have rows, and `counts`
    which numbers of them there are, of parts and in all: it may depend on those."""
    try:
        every, body, result, rows = _result(program, types, batch, ops, counts)
    except Exception as error:  # also the program's own, which may expect a number of rows
        return Joining("", reason=f"it cannot be traced: {(str(error) or type(error).__name__).splitlines()[0]}")
    slots: Any = result
    terms = every.of
    loss = terms[slots[0]]
    divisor = _divisor(body, loss.by) if loss.kind is TermKind.RATIO else None
    told = {name: slot for name, slot in slots[1].items() if isinstance(slot, int)}
    read = {name: slot if is_float(body.types[slot].dtype) else _counted(body, slot) for name, slot in told.items()}
    of = {name: terms[slot] for name, slot in read.items()}

    def how(name: str) -> str:
        if count := every.count_in(read[name]):
            return COUNT if count == 1 else ""
        term = of[name]
        return OTHER if term.kind is TermKind.RATIO and term.by != loss.by else _how(term, loss.by)

    metrics = {name: how(name) for name in of}
    return Joining(
        _how(loss, loss.by),
        divisor,
        loss.where or _OTHERWISE,
        metrics,
        frozenset([name for name, slot in told.items() if slot == loss.by]),
        unshared_draw(body, rows),
        {name: of[name].where or _OTHERWISE for name, how in metrics.items() if not how},
        {name: _divisor(body, of[name].by) for name, how in metrics.items() if how == OTHER},
    )


def _divisor(body: Body, slot: int) -> Divisor:
    end = next(i for i, e in enumerate(body.equations) if slot in e.outputs) + 1
    quotients = [e.ordinal for e in body.equations[end:] if e.primitive is DIV and e.inputs[1] == slot]
    return Divisor(tuple([e.primitive.name for e in body.equations[:end]]), frozenset(quotients))


def _counted(body: Body, slot: int) -> int:
    """Return the slot of the number that was made an integer: a count is the sum of those of all rows."""
    for e in reversed(body.equations):
        if e.primitive.name == "cast" and slot in e.outputs:
            (slot,) = e.inputs
    return slot


@final
class Joinings:
    """A cache of proofs, each valid while the Python state that the program has read is unchanged."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Joining, Guard]] = {}

    @contextmanager
    def proved(
        self,
        key: Hashable,
        program: Callable[..., Any],
        types: Sequence[TensorType],
        batch: slice,
        ops: Any,
        counts: tuple[int, ...] = (),
    ) -> Iterator[tuple[Joining, bool]]:
        """Yield `joining` of these arguments and whether it was proved now; it is cached by `key` and `counts`
        if the block succeeds.

        State that cannot be compared, such as a large array, is not an error here: the proof is repeated in every call.
        """
        key = key, counts
        kept = self._known.get(key)
        if kept is not None and kept[1].holds():
            yield kept[0], False
            return
        with observed() as seen:
            found = joining(program, types, batch, ops, counts)
        yield found, True
        with suppress(ProgramError):
            if len(self._known) > _REMEMBERED:
                self._known.clear()
            self._known[key] = found, Guard(Capture(program, seen).slots if seen.functions else [])


def means(program: Callable[..., Any], types: Sequence[TensorType], batch: slice, ops: Any) -> list[str]:
    """Return the names of a flat program's dict entries that are proved to be means over rows, or over some of them.

    Raises OpstageError if it cannot be traced.
    """
    terms, _, slots, _ = _result(program, types, batch, ops)
    of = {name: terms.of[slot] for name, slot in slots.items() if isinstance(slot, int)}
    return [
        name
        for name, term in of.items()
        if term.kind is TermKind.RATIO or (term.kind is TermKind.SUM and term.degree == -1)
    ]


def _result(
    program: Callable[..., Any], types: Sequence[TensorType], batch: slice, ops: Any, counts: Iterable[int] = ()
) -> tuple[_Terms, Body, Any, int]:
    """Return the terms of a program's tensors, its body, its result with slots for its tensors, and the number
    of rows with which it was traced."""
    sizes = {size for type_ in types for size in type_.shape}
    primes = [p for p in _PRIMES if all(size % p or not size for size in sizes)][:2]
    if len(primes) < 2:
        raise ProgramError("its sizes leave no number of rows to trace it with")
    inside = range(*batch.indices(len(types)))
    built: list[Structure] = []
    bodies = []
    each = [*primes, *sorted({count for count in counts if count > 1})]
    for count in each:
        of_rows = [TensorType((count, *t.shape[1:]), t.dtype) if i in inside else t for i, t in enumerate(types)]
        bodies.append(_traced(program, of_rows, ops, built))
    rows, body, wild = primes[0], bodies[0], set[int]()
    for count, other in zip(each[1:], bodies[1:]):
        found = astray(body, other, rows, count)
        if found is None:
            raise ProgramError(f"it takes other ops for {count} rows than for {rows}")
        wild |= found
    inputs = [Term(TermKind.ROWS, data=True) if i in inside else Term(TermKind.FIXED) for i in range(len(body.inputs))]
    result = unflatten(built[0], list(body.outputs[: built[0].num_leaves]))
    return _Terms(body, rows, inputs, frozenset(wild)), body, result, rows


def _how(term: Term, by: int) -> str:
    if term.kind is TermKind.FIXED or (term.kind is TermKind.SUM and term.degree == -1):
        return ROWS
    if term.kind is TermKind.SUM and term.degree == 0 and not term.affine:
        return SUM
    return DIVISOR if term.kind is TermKind.RATIO and term.by == by else ""


def _traced(
    program: Callable[..., Any], types: Sequence[TensorType], ops: Any, built: list[Structure] | None = None
) -> Body:
    """Trace the program into ops without bodies; append the structure of its result to `built`."""

    def outputs(traced: Any, *refs: Any) -> tuple[Any, ...]:
        leaves, structure = program(traced, *refs)
        if built is not None:
            built.append(structure)
        return tuple(leaves)

    return expand(record(outputs, types, ops.dtype, ops.seed, mesh=SAYING).body, _stays)


def _stays(primitive: Primitive, operands: Any, static: Any) -> bool:
    """Keep batch norm whole: it maps rows to rows, and its statistics are deliberately those of a part. And keep what
    draws say of their rows."""
    return primitive.name == _BATCH_NORM or primitive is VARY_LIKE


@final
class _Terms:
    """The terms of all tensors of a body; `of` has them by slot."""

    def __init__(self, body: Body, rows: int, inputs: Sequence[Term], wild: frozenset[int] = frozenset()):
        """`wild` has the slots with numbers that depend on the number of rows; see `row_numbers`."""
        self._body = body
        self._rows = rows
        self._numbers: dict[int, Fraction] = {}
        self.of: dict[int, Term] = dict(zip(body.inputs, inputs))
        for constant in body.constants:
            of_rows = constant.slot in wild
            where = "a constant that depends on the number of rows" if of_rows else ""
            self.of[constant.slot] = Term(TermKind.MIXED if of_rows else TermKind.FIXED, data=True, where=where)
            if constant.value.size == 1:
                self._numbers[constant.slot] = number_of(constant.value.reshape(())[()])
        for equation in body.equations:
            self._note_number(equation)
            terms = self._of(equation)
            if not wild.isdisjoint(equation.outputs) and terms[0].kind is not TermKind.MIXED:
                terms = [self._mixed(equation, " with a number that depends on that of the rows")] * len(terms)
            self.of.update(zip(equation.outputs, terms))

    def _note_number(self, equation: Equation) -> None:
        name, static = equation.primitive.name, equation.static
        if name == "full":
            self._numbers[equation.outputs[0]] = number_of(static["value"])
        elif name in _KEEP_NUMBERS and equation.inputs[0] in self._numbers:
            factor = number_of(static["c"]) if name == "scale" else Fraction(1)
            self._numbers[equation.outputs[0]] = factor * self._numbers[equation.inputs[0]]

    def count_in(self, slot: int) -> int:
        """Return the power of the number of rows in the number that a tensor holds; 0 for one that holds others."""
        return power_of(self._numbers.get(slot, Fraction(1)), self._rows)

    def _counts(self, equation: Equation) -> bool:
        """Return whether a power of the number of rows meets something else than a sum over rows."""
        name, static = equation.primitive.name, equation.static
        if name == "scale":
            (x,) = equation.inputs
            sums = self.of[x].kind in (TermKind.SUM, TermKind.RATIO)
            return not sums and x not in self._numbers and power_of(number_of(static["c"]), self._rows) != 0
        if not any(map(self.count_in, equation.inputs)) or name in _KEEP_NUMBERS:
            return False
        sums = any(self.of[slot].kind in (TermKind.SUM, TermKind.RATIO) for slot in equation.inputs)
        return not (name in ("mul", "div") and sums)

    def _of(self, equation: Equation) -> list[Term]:
        given = [self.of[slot] for slot in equation.inputs]
        kinds = {term.kind for term in given}
        data = all(term.data for term in given) and Effect.DRAWS not in equation.effects
        if equation.primitive is VARY_LIKE:
            made = given[:1]
        elif self._counts(equation) and TermKind.MIXED not in kinds:
            made = [self._mixed(equation, " with a number that depends on that of the rows")] * len(equation.outputs)
        elif TermKind.MIXED in kinds:
            made = [next(term for term in given if term.kind is TermKind.MIXED)] * len(equation.outputs)
        elif kinds <= {TermKind.FIXED}:
            made = [Term(TermKind.FIXED) if not self._counts_rows(equation) else self._mixed(equation)] * len(
                equation.outputs
            )
        elif equation.primitive is SCAN:
            made = self._of_loop(equation, given)
        elif TermKind.ROWS not in kinds:
            made = [self._of_sums(equation, given)] * len(equation.outputs)
        elif equation.primitive.name == _BATCH_NORM and kinds <= {TermKind.FIXED, TermKind.ROWS}:
            normed = Term(TermKind.ROWS) if images(equation, given, None, None) == 0 else self._mixed(equation)
            made = [normed, *[self._mixed(equation)] * (len(equation.outputs) - 1)]
        elif kinds <= {TermKind.FIXED, TermKind.ROWS}:
            made = [self._of_rows(equation, given)] * len(equation.outputs)
        else:
            made = [self._mixed(equation)] * len(equation.outputs)
        return [replace(term, data=data) for term in made]

    def _mixed(self, equation: Equation, more: str = "") -> Term:
        line = self._body.lines.get(equation.ordinal)
        place = f" at {line.file}:{line.line}" if line is not None else ""
        return Term(TermKind.MIXED, where=f"ops.{equation.primitive.name}{place}{more}")

    def _counts_rows(self, equation: Equation) -> bool:
        static = equation.static
        if any(self._counts_rows(inner) for _, body in bodies_of(static) for inner in body.equations):
            return True
        return equation.primitive.name == "iota" and static["shape"][static["axis"]] % self._rows == 0

    # Rows -------------------------------------------------------------------------------------------------------------

    def _of_rows(self, equation: Equation, given: Sequence[Term]) -> Term:
        rule = ROW_RULES.get(equation.primitive.name)
        types = [self._body.types[slot] for slot in equation.inputs]
        out = self._body.types[equation.outputs[0]]
        if rule is None and equation.primitive.kind is Kind.POINTWISE:
            rule = all_along_one
        alike = len({term.outer for term in given if term.kind is TermKind.ROWS}) == 1
        axis = rule(equation, given, types, out) if rule is not None and alike else None
        if axis is SUMMED:
            return Term(TermKind.SUM)
        if axis is None or sum(size % self._rows == 0 for size in out.shape) != 1 or out.shape[axis] % self._rows:
            return self._mixed(equation)
        times = outer(equation, given, types, out, axis)
        if out.shape[axis] % (times * self._rows):
            return self._mixed(equation)
        return Term(TermKind.ROWS, axis=axis, outer=times)

    def _of_loop(self, equation: Equation, given: Sequence[Term]) -> list[Term]:
        """Classify the results of a scan: carries and columns stay ROWS if one run of the body leaves them so."""
        static = equation.static
        body = expand(static["body"], _stays)
        carries, last = static["carries"], static["carries"] + static["entries"]
        entries = [replace(t, axis=t.axis - 1) if t.kind is TermKind.ROWS else t for t in given[carries:last]]
        held = list(given[:carries])
        more = [Term(TermKind.FIXED)] * (len(body.inputs) - len(given))
        sums = any(term.kind not in (TermKind.FIXED, TermKind.ROWS) for term in given)
        if sums or any(t.kind is TermKind.ROWS and t.axis < 0 for t in entries):
            return [self._mixed(equation)] * len(equation.outputs)
        for _ in range(2 * carries + 2):
            terms = _Terms(body, self._rows, [*held, *entries, *given[last:], *more])
            found = [terms.of[slot] for slot in body.outputs]
            new = [a if b.kind is TermKind.FIXED else b for a, b in zip(held, found)]
            if [(t.kind, t.axis, t.outer) for t in new] == [(t.kind, t.axis, t.outer) for t in held]:
                break
            held = new
        else:
            return [self._mixed(equation)] * len(equation.outputs)
        if any(term.kind not in (TermKind.FIXED, TermKind.ROWS) for term in found):
            return [self._mixed(equation)] * len(equation.outputs)
        stacked = [replace(t, axis=t.axis + 1) if t.kind is TermKind.ROWS else t for t in found[carries:]]
        return [*held, *stacked]

    # Sums over rows ---------------------------------------------------------------------------------------------------

    def _of_sums(self, equation: Equation, given: Sequence[Term]) -> Term:
        name, static = equation.primitive.name, equation.static
        moving = [term for term in given if term.kind is not TermKind.FIXED]
        first = moving[0]
        alike = all((t.kind, t.degree, t.by) == (first.kind, first.degree, first.by) for t in moving)
        fixed = len(moving) < len(given)
        if name == "scale":
            return self._times(equation, first, number_of(static["c"]))
        if name in ("add", "sub", "neg", "concat") and alike:
            return replace(first, affine=fixed or any(t.affine for t in moving))
        if name in ("reshape", "permute", "broadcast_to", "slice", "reduce_sum", "detach"):
            return first
        if name == "cast" and is_float(self._body.types[equation.outputs[0]].dtype):
            return first
        if name == "mul" and len(moving) == 1:
            other = equation.inputs[1 - given.index(first)]
            return self._times(equation, first, self._numbers.get(other, Fraction(1)))
        if name == "div" and len(moving) == 1 and given[0] is first:
            return self._times(equation, first, self._numbers.get(equation.inputs[1], Fraction(1)), divided=True)
        if name == "div" and len(moving) == 2:
            above, below = given
            counts = below.kind is TermKind.SUM and below.data
            plain = not (above.affine or below.affine or above.degree or below.degree)
            if above.kind is TermKind.SUM and counts and plain and self._body.types[equation.inputs[1]].shape == ():
                return Term(TermKind.RATIO, by=equation.inputs[1])
        return self._mixed(equation)

    def _times(self, equation: Equation, term: Term, factor: Fraction, *, divided: bool = False) -> Term:
        power = power_of(factor, self._rows)
        if power and (term.affine or term.kind is TermKind.RATIO):
            return self._mixed(equation)
        return replace(term, degree=term.degree - power if divided else term.degree + power)
