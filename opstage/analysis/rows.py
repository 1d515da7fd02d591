"""How the result for a batch depends on its examples: each from one row, a sum over rows, a ratio of such sums.

There are two domains, over a program traced with a symbolic number of rows. `RowReads` is dependence along that dim;
`Joins` reads its facts, and classifies results as sums over rows of a degree in their number. `analyze_parts` finds
which sums must cover the whole batch so that the results of its parts add up.

The program of a rank may have collectives, whose results are fixed if all ranks receive the same. The rank has `rows`
of the batch's rows * ranks: a number that depends on that product alone belongs to the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from ..ops.body import Body, BodyConstant, Equation
from ..ops.catalogue import primitives
from ..ops.collective import ALL_GATHER, ALL_MAX, ALL_REDUCE, BY_NAME, SHARD, VARY
from ..ops.dims import Dim, DimExpr, DimFloat, ratio
from ..ops.dims.polynomial import Minimum, NamedDim, Polynomial, Quotient, iterate_names, parts
from ..ops.dims.radicals import Base, Opaque
from ..ops.dispatch import VARY_LIKE
from ..ops.elementwise import ADD, DIV, MUL, NEG, SCALE, SUB
from ..ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ..ops.logic import CAST, DETACH, FULL, IOTA, SELECT
from ..ops.matmul import BMM, MATMUL
from ..ops.normalization import BATCH_NORM
from ..ops.primitive import Kind, Primitive
from ..ops.random import DRAWS
from ..ops.reduction import REDUCE_SUM
from ..ops.slicing import CONCAT, SLICE
from ..ops.types import TensorType, is_float
from ..transforms.control_flow import get_bodies
from .dependence import Dependence, Fact
from .dependence.fact import Span, plain
from .dependence.regions import equal_proved
from .domain import Domain, OpCall, Rule
from .interpretation import Interpretation

_OWN = Span(1, 0, 0)
_LINEAR = (RESHAPE, PERMUTE, BROADCAST_TO, SLICE, REDUCE_SUM, DETACH)
_KEEP_NUMBERS = (*_LINEAR, NEG, CAST, SCALE)
_ADDING = (ADD, SUB, CONCAT, SELECT)
"""Ops whose result is a sum over rows plus a fixed term, if their operands are such sums and fixed ones."""
_INTEGRAL = (*_LINEAR, *_ADDING, NEG, MUL, CAST, MATMUL, BMM)
"""Ops whose result is a whole number if their operands are."""
_BY_NUMBER = " with a number that depends on that of the rows"
BY_SENDING = ", of which each rank receives something else"

ROWS, RANKS = "rows", "ranks"
"""The names of the dims: the rows of a part or of a rank, and the number of ranks."""


def _each_row(domain: Any, call: OpCall, facts: Sequence[Fact]) -> Sequence[Fact]:
    """Return the facts of a batch norm: rows to rows, since its statistics are deliberately those of a part."""
    return [facts[0], *[domain.top(type_, facts) for type_ in call.outputs[1:]]]


class RowReads(Dependence):
    """Dependence along the rows. A tensor that has rows and reads none, such as zeros, counts as reading its own rows.

    So an op that mixes the rows of such a tensor is found.
    """

    name = "rows"
    rules: ClassVar[Mapping[Primitive, Rule]] = {
        **Dependence.rules,
        BATCH_NORM: _each_row,
        **{each: lambda domain, call, facts: [plain(call.outputs[0].shape, domain.outer)] for each in BY_NAME.values()},
        VARY: lambda domain, call, facts: facts[:1],
        VARY_LIKE: lambda domain, call, facts: facts[:1],
    }
    kinds = Dependence.kinds

    @override
    def finish(self, call: OpCall, facts: Sequence[Fact], results: Sequence[Fact]) -> Sequence[Fact]:
        return [self._read(fact) if fact.idle else fact for fact in results]

    def _read(self, fact: Fact) -> Fact:
        rows = self.dim
        assert rows is not None
        for axis, sizes in enumerate(fact.axes):
            if len(sizes) == 1 and isinstance(sizes[0], DimExpr) and not equal_proved(sizes[0], rows):
                times = ratio(sizes[0], rows)
                if isinstance(times, Fraction) and times.denominator == 1:
                    fact = fact._replace(axes=(*fact.axes[:axis], (rows, int(times)), *fact.axes[axis + 1 :]))
        at = [i for i, size in enumerate(fact.sizes) if isinstance(size, DimExpr)]
        return fact._replace(outside=(), value=None, reads=tuple([(i, _OWN) for i in at])) if at else fact


def row_index(fact: Fact) -> int | None:
    """Return the index whose entries belong to the rows of the same number; None without one."""
    at = [i for i, size in enumerate(fact.sizes) if isinstance(size, DimExpr)]
    return at[0] if len(at) == 1 and not fact.whole and fact.reads == ((at[0], _OWN),) else None


class RowKind(IntEnum):
    FIXED = 0
    ROWS = 1
    SUM = 2
    RATIO = 3
    MIXED = 4


class Join(NamedTuple):
    """How a tensor joins from those of parts of the batch.

    data      computable before the step: no gradient reaches it, and it does not depend on random samples
    drawn     depends on random samples
    integral  a whole number, of any dtype
    zero      for FIXED: is 0
    degree    for SUM: the power of the number of rows that multiplies it; -1 for a mean
    affine    for SUM: includes a fixed summand
    power     for FIXED: the power of the number of rows in it; that of a rank times `ranks` is that of the batch
    local     for FIXED: the power comes from the rank's own number of rows, not from the operand of a collective
    uniform   for ROWS: all rows are equal
    note      for MIXED: the cause, if it is not the op itself
    """

    kind: RowKind
    data: bool = False
    drawn: bool = False
    integral: bool = False
    zero: bool = False
    degree: int = 0
    affine: bool = False
    power: int = 0
    local: bool = False
    uniform: bool = False
    note: str = ""

    @property
    def is_sum(self) -> bool:
        return self.kind in (RowKind.SUM, RowKind.RATIO)


MIXED = Join(RowKind.MIXED)
_UNFOLLOWED = Join(RowKind.MIXED, note=_BY_NUMBER)


def row_power(value: Any) -> int | None:
    """Return the power of the number of rows that a static number is a multiple of; None for any other function of
    it.
    """
    if isinstance(value, DimExpr):
        value = value / 1
    if not isinstance(value, DimFloat):
        return 0
    twice = {_sum([_times_power(_power_of_base(base), power) for base, power in factors]) for factors in value.terms}
    (power,) = twice if len(twice) == 1 else (None,)
    return power // 2 if power is not None and power % 2 == 0 else None


def _power_of_base(base: Base) -> int | None:
    if isinstance(base, NamedDim):
        return -1 if base.text == RANKS else 1
    if isinstance(base, DimExpr):
        return _power_of_sum(base.polynomial)
    if isinstance(base, (int, Opaque)):
        return 0 if isinstance(base, int) else None
    return 0 if all(_power_of_sum(part) == 0 for part in parts(base)) else None


def _power_of_sum(p: Polynomial) -> int | None:
    powers = {_sum([_power_of_base(atom) for atom in monomial]) for monomial in p}
    return powers.pop() if len(powers) == 1 else None


def _sum(powers: Sequence[int | None]) -> int | None:
    known = [power for power in powers if power is not None]
    return sum(known) if len(known) == len(powers) else None


def _times_power(power: int | None, times: int) -> int | None:
    return None if power is None else power * times


def _reads_rows(value: Any) -> bool:
    """Return whether a static number depends on the number of rows."""
    if isinstance(value, (DimFloat, Opaque)):
        bases = [base for factors in value.terms for base, _ in factors]
        return any(_reads_rows(base) for base in bases)
    if isinstance(value, DimExpr):
        return any(name.text != RANKS for name in iterate_names(value.polynomial))
    if isinstance(value, (Quotient, Minimum)):
        return any(name.text != RANKS for part in parts(value) for name in iterate_names(part))
    return isinstance(value, NamedDim) and value.text != RANKS


def _rule(domain: Joins, call: OpCall, facts: Sequence[Join]) -> Sequence[Join] | None:
    found = _transfer(domain, call, facts)
    drawn = call.primitive in DRAWS or any(fact.drawn for fact in facts)
    data = call.primitive is DETACH or all(fact.data for fact in facts)
    zero = call.primitive in _KEEP_NUMBERS and facts[0].zero
    integral = all(fact.integral for fact in facts or found) and (call.primitive in _INTEGRAL or not facts)
    out = [*found, *[found[-1]] * (len(call.outputs) - len(found))]
    return [
        MIXED
        if fact.is_sum and has_rows(type_)
        else fact._replace(
            drawn=drawn,
            data=not drawn and (data or type_.dtype.kind in "iub"),
            integral=integral or type_.dtype.kind in "iub",
            zero=fact.zero or (zero and fact.kind is RowKind.FIXED),
        )
        for fact, type_ in zip(out, call.outputs)
    ]


def has_rows(type: TensorType) -> bool:
    """Return whether a tensor has the rows of a part, and not only those of the whole batch."""
    return any(isinstance(size, DimExpr) and _reads_rows(size) and row_power(size) != 0 for size in type.shape)


def _has_all_rows(type: TensorType) -> bool:
    return any(isinstance(size, DimExpr) and row_power(size) == 0 for size in type.shape)


def _transfer(domain: Joins, call: OpCall, facts: Sequence[Join]) -> list[Join]:
    primitive, static = call.primitive, call.static
    worst = max([fact.kind for fact in facts], default=RowKind.FIXED)
    if primitive.kind is Kind.COLLECTIVE:
        return [_of_ranks(call, facts)]
    if worst is RowKind.MIXED:
        return [next(fact for fact in facts if fact.kind is RowKind.MIXED)]
    if primitive is VARY_LIKE:
        return [facts[0]]
    if primitive is IOTA and isinstance(static["shape"][static["axis"]], DimExpr):
        return [MIXED]
    if domain.whole:
        return [_of_sums(call, facts, ratios=False)] if worst is RowKind.SUM else _followed(domain, call, facts, worst)
    if primitive is FULL:
        return _number(call, row_power(static["value"]), _reads_rows(static["value"]))
    if primitive is SCALE:
        power = row_power(static["c"])
        if power is None or (power and facts[0].kind is RowKind.ROWS):
            return [_UNFOLLOWED]
        if facts[0].is_sum:
            return [_times(facts[0], power)]
        return _number(call, facts[0].power + power, facts[0].local or _reads_rows(static["c"]))
    if any(row_power(value) != 0 for value in static.values() if isinstance(value, DimFloat)):
        return [_UNFOLLOWED]
    if primitive in (MUL, DIV) and worst is RowKind.FIXED:
        x, y = facts
        return _number(call, x.power + (y.power if primitive is MUL else -y.power), x.local or y.local)
    if primitive in _ADDING and worst is RowKind.SUM:  # a multiple of the number of rows is a sum over them
        facts = [
            fact._replace(kind=RowKind.SUM, degree=fact.power - 1, power=0, local=False) if fact.local else fact
            for fact in facts
        ]
    powers = any(fact.power for fact in facts)
    whole = primitive is not CAST or facts[0].integral or is_float(call.outputs[0].dtype)
    keeps = primitive in _KEEP_NUMBERS and whole
    if powers and not keeps and not (primitive in (MUL, DIV) and worst >= RowKind.SUM):
        if any(fact.local for fact in facts):
            return [_UNFOLLOWED]
        facts = [fact._replace(power=0) for fact in facts]
    return [_of_sums(call, facts)] if worst >= RowKind.SUM else _followed(domain, call, facts, worst)


def _followed(domain: Joins, call: OpCall, facts: Sequence[Join], worst: RowKind) -> list[Join]:
    """Return the results of an op on operands that have rows or are fixed."""
    if worst is RowKind.FIXED:
        kept = facts and call.primitive in _KEEP_NUMBERS
        return _number(call, facts[0].power if kept else 0, facts[0].local if kept else False)
    return _of_rows(domain, call, facts)


def _number(call: OpCall, power: int | None, local: bool) -> list[Join]:
    """Return the result of an op on operands without rows, which it may repeat for each row."""
    if power is None:
        return [_UNFOLLOWED]
    if has_rows(call.outputs[0]):
        if any(map(_has_all_rows, call.inputs)):  # some of the batch's rows, the same for all parts
            return [MIXED]
        return [_UNFOLLOWED if power and local else Join(RowKind.ROWS, uniform=call.primitive in (FULL, BROADCAST_TO))]
    fact = Join(RowKind.FIXED, power=power, local=local and power != 0)
    value = call.static["value"] if call.primitive is FULL else None
    if not isinstance(value, (int, float)):
        return [fact._replace(integral=isinstance(value, DimExpr))]
    return [fact._replace(integral=value % 1 == 0, zero=value == 0)]


def _of_ranks(call: OpCall, facts: Sequence[Join]) -> Join:
    """Return the result of a collective: fixed if all ranks receive the same."""
    primitive, result = call.primitive, call.outputs[0]
    sent = MIXED._replace(note=BY_SENDING)
    if not facts:
        return sent
    (x,) = facts
    if primitive is VARY:
        return x
    if primitive is SHARD:
        rows = has_rows(result) and row_power(call.inputs[0].shape[call.static["dim"]]) == 0
        return Join(RowKind.ROWS) if rows and x.kind is RowKind.FIXED and not x.power else sent
    if primitive not in (ALL_REDUCE, ALL_MAX, ALL_GATHER) or has_rows(result):
        return sent
    if x.kind is RowKind.FIXED:
        power = x.power - 1 if primitive is ALL_REDUCE else x.power
        return Join(RowKind.FIXED, power=power, local=x.local and power != 0)
    is_total = primitive is ALL_REDUCE and x.kind is RowKind.SUM and not x.affine
    return Join(RowKind.FIXED, power=x.degree if is_total else 0)


def _of_rows(domain: Joins, call: OpCall, facts: Sequence[Join]) -> list[Join]:
    known: Sequence[Fact] = call.known["rows"]
    at = [row_index(fact) if own.kind is RowKind.ROWS else None for fact, own in zip(known, facts)]
    if any(index is None and own.kind is RowKind.ROWS for index, own in zip(at, facts)):
        return [MIXED]
    primitive = call.primitive
    if primitive is BATCH_NORM:
        ok = at[0] is not None and not any(own.kind is RowKind.ROWS for own in facts[1:])
        statistics = Join(RowKind.FIXED) if ok and domain.ranks else MIXED
        return [Join(RowKind.ROWS) if ok else MIXED, *[statistics] * (len(call.outputs) - 1)]
    axes = [_axis(fact, index) for fact, index in zip(known, at)]
    uniform = all(own.uniform for own in facts)
    if primitive is REDUCE_SUM and axes[0] in call.static["axes"]:
        fixed = uniform and domain.of_rank
        return [Join(RowKind.FIXED, power=1, local=True) if fixed else Join(RowKind.SUM)]
    if primitive in (MATMUL, BMM):
        a, b = axes
        summed = len(known[0].axes) - 1, len(known[1].axes) - 2
        if (a, b) == summed:
            return [Join(RowKind.SUM) if _alike(known, at) else MIXED]
        return [MIXED if a == summed[0] or b == summed[1] else Join(RowKind.ROWS)]
    return [Join(RowKind.ROWS, uniform=uniform and primitive.kind is Kind.POINTWISE)]


def _axis(fact: Fact, index: int | None) -> int | None:
    return next((axis for axis in range(len(fact.axes)) if index in fact.indices(axis)), None)


def _alike(known: Sequence[Fact], at: Sequence[int | None]) -> bool:
    """Return whether rows have the same order along the axes that a product sums over."""
    cuts = [next(sizes for a, sizes in enumerate(fact.axes) if i in fact.indices(a)) for fact, i in zip(known, at)]
    return len(cuts[0]) == len(cuts[1]) and all(equal_proved(x, y) for x, y in zip(*cuts))


def _of_sums(call: OpCall, facts: Sequence[Join], *, ratios: bool = True) -> Join:
    """Return the result of an op on sums over rows."""
    primitive = call.primitive
    if any(fact.kind is RowKind.ROWS for fact in facts):
        return MIXED
    moving = [fact for fact in facts if fact.kind is not RowKind.FIXED]
    first = moving[0]
    alike = all((fact.kind, fact.degree) == (first.kind, first.degree) for fact in moving)
    chosen = primitive is SELECT and facts[0].kind is not RowKind.FIXED
    if primitive in (*_ADDING, NEG) and alike and not chosen:
        return first._replace(affine=bool(addends(primitive, facts)) or any(fact.affine for fact in moving))
    if primitive in _LINEAR or (primitive is CAST and (first.integral or is_float(call.outputs[0].dtype))):
        return first
    if primitive is SCALE and not ratios:
        return first
    if primitive in (MUL, MATMUL, BMM) and len(moving) == 1:
        return _times(first, sum([fact.power for fact in facts]))
    if primitive is DIV and facts[0] is first and len(moving) == 1:
        return _times(first, -facts[1].power)
    if primitive is DIV and len(moving) == 2 and ratios:
        above, below = facts
        plain = not (above.affine or below.affine or above.degree or below.degree)
        counted = above.kind is below.kind is RowKind.SUM and below.data and call.inputs[1].shape == ()
        if plain and counted:
            return Join(RowKind.RATIO)
    return MIXED


def addends(primitive: Primitive, facts: Sequence[Join]) -> list[int]:
    """Return the indices of the operands that are fixed and added to sums over rows."""
    if primitive not in _ADDING or not any(fact.is_sum for fact in facts):
        return []
    first = 1 if primitive is SELECT else 0
    return [i for i, fact in enumerate(facts) if i >= first and fact.kind is RowKind.FIXED and not fact.zero]


def _times(term: Join, power: int) -> Join:
    if power and (term.affine or term.kind is RowKind.RATIO):
        return _UNFOLLOWED
    return term._replace(degree=term.degree + power)


class Joins(Domain[Join]):
    """How each tensor joins from those of parts of the batch.

    whole    numbers that depend on the number of rows are those of the whole batch, and fixed
    ranks    the parts belong to ranks, which compute the statistics of the whole batch
    of_rank  the program is that of a rank, which may repeat replicated tensors for rows
    """

    name = "joins"
    asks = ("rows",)
    rules: ClassVar[Mapping[Primitive, Rule]] = {
        **{each: _rule for each in primitives().values() if each.decomposition is None},
        BATCH_NORM: _rule,
        VARY_LIKE: _rule,
    }

    def __init__(self, *, whole: bool = False, ranks: bool = False, of_rank: bool = False):
        self.whole = whole
        self.ranks = ranks
        self.of_rank = of_rank

    @override
    def source(self, name: str, type: TensorType) -> Join:
        rows = has_rows(type)
        return Join(RowKind.ROWS if rows else RowKind.FIXED, data=rows, integral=type.dtype.kind in "iub")

    @override
    def constant(self, constant: BodyConstant) -> Join:
        value, whole = constant.value, constant.type.dtype.kind in "iub"
        return Join(
            RowKind.FIXED, data=True, integral=whole or bool((np.floor(value) == value).all()), zero=not value.any()
        )

    @override
    def top(self, type: TensorType, operands: Sequence[Join]) -> Join:
        return Join(RowKind.FIXED) if all(fact.kind is RowKind.FIXED for fact in operands) else MIXED

    @override
    def anything(self, type: TensorType) -> Join:
        return MIXED

    @override
    def join(self, a: Join, b: Join) -> Join:
        flags: dict[str, Any] = {
            "data": a.data and b.data,
            "drawn": a.drawn or b.drawn,
            "integral": a.integral and b.integral,
            "zero": a.zero and b.zero,
            "local": a.local or b.local,
            "uniform": a.uniform and b.uniform,
        }
        if a._replace(**flags) == b._replace(**flags):
            return a._replace(**flags)
        low, high = sorted((a, b), key=lambda fact: fact.kind)
        if low.kind is RowKind.FIXED and high.is_sum and not low.power:
            return high._replace(affine=high.affine or not low.zero, **flags)
        return MIXED

    @override
    def entry(self, fact: Join, type: TensorType, length: Dim) -> Join:
        return MIXED if isinstance(length, DimExpr) else fact

    @override
    def stacked(self, fact: Join, length: Dim) -> Join:
        return MIXED if isinstance(length, DimExpr) else fact

    @override
    def last(self, fact: Join, length: Dim) -> Join:
        return MIXED if isinstance(length, DimExpr) else fact

    @override
    def influence(self, fact: Join, by: Join) -> Join:
        if by.kind is not RowKind.FIXED:
            return MIXED
        return fact._replace(drawn=fact.drawn or by.drawn, data=fact.data and not by.drawn)


class TermFacts(NamedTuple):
    """Facts by which the results of parts of a batch add up to that of the batch.

    An operand is a pair: the first result of its op, and its index.

    facts   of each slot, if so
    whole   operands that must be sums over all rows of the batch, not over those of the part
    shared  operands of which each part adds its share
    needs   by slot, the slots of the sums over all rows that it depends on
    """

    facts: Sequence[Any]
    whole: set[tuple[int, int]]
    shared: set[tuple[int, int]]
    needs: Mapping[int, frozenset[int]]


def analyze_parts(run: Interpretation, body: Body) -> TermFacts:
    """Find how the results for parts of a batch add up; the inputs of `body` have the rows.

    If a result is not a sum over rows, some operands that are such sums must cover the whole batch: the fewest that
    help, first those that are computable before the step. Numbers that depend on the number of rows are those of the
    whole batch. `run` is an interpretation in `RowReads` and `Joins(whole=True)`.
    """
    facts: list[Any] = [None] * len(body.types)
    for slot in body.inputs:
        facts[slot] = source_facts(run, body.types[slot])
    for constant in body.constants:
        facts[constant.slot] = tuple([domain.constant(constant) for domain in run.domains])
    whole, shared, needs = set[tuple[int, int]](), set[tuple[int, int]](), dict[int, frozenset[int]]()
    for equation in body.equations:
        types = [body.types[slot] for slot in equation.inputs + equation.outputs]
        results, chosen, added = _of_parts(run, equation, [facts[slot] for slot in equation.inputs], types)
        for slot, known in zip(equation.outputs, results, strict=True):
            facts[slot] = known
        whole |= {(equation.outputs[0], i) for i in chosen}
        shared |= {(equation.outputs[0], i) for i in added}
        sums = frozenset([equation.inputs[i] for i in chosen])
        needs |= dict.fromkeys(equation.outputs, sums.union(*[needs.get(slot, ()) for slot in equation.inputs]))
    return TermFacts(facts, whole, shared, needs)


def source_facts(run: Interpretation, type: TensorType) -> Any:
    """Return the facts of an input of this type."""
    return tuple([domain.source("", type) for domain in run.domains])


def _of_parts(
    run: Interpretation, equation: Equation, read: Sequence[Any], types: Sequence[TensorType]
) -> tuple[list[Any], Sequence[int], Sequence[int]]:
    """Return the facts of an equation's results, the operands that must cover the batch, and those added in shares."""
    sums = [i for i, (_, join) in enumerate(read) if join.kind is RowKind.SUM]
    before = [i for i in sums if read[i][1].data]
    for chosen in (list[int](), [i for i in before if i], before, sums):
        taken = [
            (source_facts(run, type_)[0], join._replace(kind=RowKind.FIXED)) if i in chosen else (fact, join)
            for i, ((fact, join), type_) in enumerate(zip(read, types))
        ]
        added = addends(equation.primitive, [join for _, join in taken])
        results = run.results(equation, taken, types)
        if added and is_float(types[added[0]].dtype):
            results = [(fact, join._replace(affine=False)) for fact, join in results]
        if not any(join.kind is RowKind.MIXED or join.affine for _, join in results):
            return results, chosen, added
    results = run.results(equation, read, types)
    return [(fact, MIXED if join.affine else join) for fact, join in results], (), ()


def batch_statistics(body: Body) -> str:
    """Return a message about the first op that computes the statistics of a batch; "" if the body has none."""
    text = " takes the statistics of a batch, which in parts would be those of a part"
    return _first_message(body, lambda body, e: (e.primitive.name, text) if e.primitive is BATCH_NORM else None)


def unshared_draw(body: Body, rows: Dim) -> str:
    """Return a message about the first random op whose samples on a mesh differ from those of one rank; "" if none."""

    def message(body: Body, e: Equation) -> tuple[str, str] | None:
        wrong = _unshared(e, body, rows) if e.primitive in DRAWS else ""
        return ("a draw", wrong) if wrong else None

    return _first_message(body, message)


def _first_message(body: Body, message: Callable[[Body, Equation], tuple[str, str] | None]) -> str:
    """Return the first message about an equation of a body and of those inside it, as the words around its line."""
    for e in body.equations:
        if found := message(body, e):
            line = body.lines.get(e.ordinal)
            return found[0] + (f" at {line.file}:{line.line}" if line is not None else "") + found[1]
        for _, inner in get_bodies(e.static):
            if text := _first_message(inner, message):
                return text
    return ""


def _unshared(draw: Equation, body: Body, rows: Dim) -> str:
    """Return why ranks would draw other samples than one rank; "" if they would not."""
    type = body.types[draw.outputs[0]]
    like = {slot: body.types[e.inputs[1]] for e in body.equations if e.primitive is VARY_LIKE for slot in e.outputs}
    said = any(isinstance(size, DimExpr) for slot in draw.inputs if slot in like for size in like[slot].shape)
    at = [i for i, size in enumerate(type.shape) if isinstance(size, DimExpr)]
    if at and not said:
        return (
            " is for the rows of a batch but has no like= with them, so all ranks would draw the same for rows of "
            "their own; give it a tensor with these rows, such as ops.rand_normal(shape=x.shape, like=x)"
        )
    first = len(at) == 1 and all(size == 1 for size in type.shape[: at[0]])
    if not said or (first and isinstance(times := ratio(type.shape[at[0]], rows), Fraction) and times.denominator == 1):
        return ""
    return (
        " has like= with the rows of a batch, but its shape does not begin with them, so ranks would draw other "
        "numbers than one rank; draw the rows first, as in ops.rand_normal(shape=x.shape, like=x), and transpose the "
        "result, or leave like= out of a draw that has no rows"
    )
