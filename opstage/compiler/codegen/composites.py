"""Composites as bodies: decompositions, from which loops are generated, and composites made of runs of ops.

In the body of a long loop, loop invariants leave the loop and each run of elementwise ops becomes one composite."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias, final

from typing_extensions import override

from ...ops.body import Body, Equation, with_opened
from ...ops.catalogue import own
from ...ops.layout import PERMUTE, TRANSPOSE2D
from ...ops.logic import FULL
from ...ops.primitive import Kind, Primitive, Static, distinct
from ...ops.slicing import CONCAT, PAD
from ...ops.types import FLOAT64, TensorType
from ...transforms.control_flow import CONTROL
from ...transforms.interpreter import Variable
from ...transforms.scan import SCAN
from ...transforms.tracer import Composite, Writing, constants, evaluate

# Decompositions -------------------------------------------------------------------------------------------------------

Keep: TypeAlias = Callable[[Primitive, tuple[TensorType, ...], Static], bool]
"""(primitive, types of the operands, static parameters) -> whether a composite is kept."""


def is_fixed(primitive: Primitive) -> bool:
    """Return whether an op is a composite whose decomposition is the same in every call, so that results can be cached.

    Composites of the catalogue and closed bodies are. A decomposition of another package may read unknown Python state.
    """
    return type(primitive) is Composite or (primitive.decomposition is not None and primitive in own())


def stays(keep: Keep, primitive: Primitive, operands: tuple[TensorType, ...], static: Static, loops: bool) -> bool:
    """Return whether an op is not expanded; branches are not, nor are loops, unless loops are unrolled or have one
    iteration."""
    if primitive in CONTROL:
        return primitive is not SCAN or not (loops or static["length"] == 1)
    return primitive.decomposition is None or keep(primitive, operands, static)


@final
class Expander(Writing):
    """Records decompositions."""

    __slots__ = ("keep", "loops")
    no_values = "a decomposition has no values, so it cannot depend on them"

    def __init__(self, keep: Keep, loops: bool):
        super().__init__(FLOAT64, 0)  # decompositions get dtypes and seeds from their operands and static parameters
        self.keep = keep
        self.loops = loops

    def parts(self, primitive: Primitive, operands: tuple[TensorType, ...], static: Static) -> Body:
        """Return a composite's decomposition as a body, from operands to outputs and residuals, even if it may be
        kept."""
        return self._body(self.decompose, primitive, operands, static)

    def body(self, primitive: Primitive, operands: tuple[TensorType, ...], static: Static) -> Body:
        """Return an op as a body: its parts, or the op alone if it is kept."""
        return self._body(self.bind, primitive, operands, static)

    def _body(
        self,
        write: Callable[[Primitive, tuple[Variable, ...], Static], tuple[Variable, ...]],
        primitive: Primitive,
        operands: tuple[TensorType, ...],
        static: Static,
    ) -> Body:
        refs = tuple([self.input(type_) for type_ in operands])
        results = write(primitive, refs, static)
        return self.trace.close([ref.slot for ref in refs], [ref.slot for ref in results], {})

    def written_out(self, body: Body) -> Body:
        """Expand the composites of `body` that are not kept; parts have the region and ordinal of the composite.

        A body without any is returned as it is.
        """
        if all(
            stays(self.keep, e.primitive, tuple([body.types[slot] for slot in e.inputs]), e.static, self.loops)
            for e in body.equations
        ):
            return body
        refs = [self.input(type_) for type_ in body.input_types]
        results = evaluate(self, body, refs, constants(self, body))
        return self.trace.close([ref.slot for ref in refs], [ref.slot for ref in results], body.lines)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Variable, ...], static: Static, /) -> tuple[Variable, ...]:
        operands = tuple([ref.type for ref in refs])
        if not stays(self.keep, primitive, operands, static, self.loops):
            return self.decompose(primitive, refs, static)
        types = primitive.infer(operands, static)
        return self.write(primitive, refs, static, types)


# Loop invariants ------------------------------------------------------------------------------------------------------

_TRANSPOSITIONS = (TRANSPOSE2D, PERMUTE)


def hoisted(body: Body, varying: int) -> tuple[Body, Body] | None:
    """Return the loop invariants of `body` as a body of its inputs except the first `varying`, and the rest of `body`,
    with these results as additional inputs; None if there is nothing to hoist.

    The only layout ops that are hoisted are transposed operands of products, as copies: the product reads them faster,
    which pays for the copy. Other layout ops cost nothing in an iteration.
    """
    fixed = {*body.inputs[varying:], *[constant.slot for constant in body.constants]}
    makers = {}
    for e in body.equations:
        if not e.effects and e.inputs and fixed.issuperset(e.inputs):
            fixed.update(e.outputs)
            makers.update(dict.fromkeys(e.outputs, e))
    out: dict[int, None] = {}
    for e in body.equations:
        if e.outputs[0] in makers:
            if e.primitive.kind is not Kind.LAYOUT:
                out.update(dict.fromkeys(e.outputs))
        elif e.primitive.kind is Kind.CONTRACTION:
            out.update({s: None for s in e.inputs if s in makers and makers[s].primitive in _TRANSPOSITIONS})
    if not out:
        return None
    needed = set(out)
    for e in reversed(body.equations):
        if e.outputs[0] in makers and not needed.isdisjoint(e.outputs):
            needed.update(e.inputs)
    before = [e for e in body.equations if e.outputs[0] in makers and not needed.isdisjoint(e.outputs)]
    varying_part = [e for e in body.equations if out.keys().isdisjoint(e.outputs)]
    read = {*body.outputs}
    for e in reversed(varying_part):
        if not read.isdisjoint(e.outputs) or e.outputs[0] not in makers:
            read.update(e.inputs)
    varying_part = [e for e in varying_part if not read.isdisjoint(e.outputs) or e.outputs[0] not in makers]
    results = [slot for slot in out if slot in read]
    return (
        _part(body, body.inputs[varying:], before, results),
        _part(body, [*body.inputs, *results], varying_part, body.outputs),
    )


def _part(body: Body, inputs: Sequence[int], equations: list[Equation], outputs: Sequence[int]) -> Body:
    read = {*outputs}.union(*[e.inputs for e in equations])
    constants = [constant for constant in body.constants if constant.slot in read]
    equations = with_opened(equations, outputs)
    return body.replace(inputs=inputs, constants=constants, equations=equations, outputs=outputs)


# Runs -----------------------------------------------------------------------------------------------------------------

# An eager loop binds each op of its body by itself, in every iteration: on small operands that takes longer than the
# arithmetic. A composite for a run leaves one call, and what lies between its ops never goes to memory.

_FEWEST = 2
"""Ops, not counting free ones, from which on a run is worth a composite."""

_COMPOSITES: dict[Hashable, Composite] = {}
"""By what they do, so that each has one kernel however often its loop is traced."""
_MOST_COMPOSITES = 1 << 10


def in_runs(body: Body, has_kernel: Keep) -> Body:
    """Return `body` with each run of elementwise ops as one composite, where `has_kernel` for that composite.

    Ops change places only with ops that they do not depend on. Those with an effect stay single, in their order. An op
    that costs nothing, a view or a constant, is repeated in each run that reads it.
    """
    return _Regrouping(body, has_kernel).regrouped()


def _is_free(e: Equation) -> bool:
    return not e.effects and (e.primitive.view or e.primitive is FULL)


def _is_elementwise(e: Equation) -> bool:
    """Whether a run may hold an op; a copy, too, if generated loops can make it on the way."""
    if e.primitive is PAD:
        return not any(e.static["interior"])
    return not e.effects and (e.primitive.kind is Kind.POINTWISE or e.primitive is CONCAT)


class _Regrouping:
    """The equations of a body, put together anew."""

    def __init__(self, body: Body, has_kernel: Keep):
        self.body = body
        self.has_kernel = has_kernel
        self.free = {e.outputs[0]: e for e in body.equations if _is_free(e)}
        self.sources: dict[int, frozenset[int]] = {}
        """The slots behind the result of a free op that other ops compute or that come from outside."""
        for slot, e in self.free.items():
            self.sources[slot] = self.read(e.inputs)
        self.written: set[int] = set()
        self.equations: list[Equation] = []

    def read(self, slots: Sequence[int]) -> frozenset[int]:
        """The slots that are read by who reads `slots`, through free ops."""
        return frozenset().union(*[self.sources.get(slot, {slot}) for slot in slots])

    def regrouped(self) -> Body:
        """The body with its runs."""
        parts = self._parts()
        later = [self.read(self.body.outputs)]
        for part in reversed(parts):
            later.append(later[-1].union(*[self.read(e.inputs) for e in part]))
        for part, wanted in zip(parts, later[-2::-1]):
            run = self._run(part, wanted) if len(part) >= _FEWEST else None
            if run is not None:
                self.equations.append(run)
                continue
            for e in part:
                self._write_free(e.inputs)
                self.equations.append(e)
        self._write_free(self.body.outputs)
        return self.body.replace(equations=self.equations)

    def _parts(self) -> list[list[Equation]]:
        """The ops that are not free, in an order with long runs: lists of elementwise ops, and of one other op each."""
        known = {*self.body.inputs, *[constant.slot for constant in self.body.constants]}
        waiting = [(e, _is_elementwise(e), self.read(e.inputs)) for e in self.body.equations if not _is_free(e)]
        parts = []
        while waiting:
            run: list[Equation] = []
            rest = []
            for each in waiting:
                e, elementwise, reads = each
                if elementwise and known >= reads:
                    run.append(e)
                    known.update(e.outputs)
                else:
                    rest.append(each)
            if run:
                parts.append(run)
            waiting, blocked = [], False
            for each in rest:
                e, elementwise, reads = each
                blocked = blocked or not (elementwise or known >= reads)
                if blocked or elementwise:
                    waiting.append(each)
                else:
                    parts.append([e])
                    known.update(e.outputs)
        return parts

    def _run(self, part: list[Equation], wanted: frozenset[int]) -> Equation | None:
        """The composite of a part, whose results are those of its slots that are `wanted`; None without a kernel."""
        inside = self._with_free(part)
        made = {slot for e in inside for slot in e.outputs}
        inputs = list(dict.fromkeys(slot for e in inside for slot in e.inputs if slot not in made))
        outputs = [slot for e in part for slot in e.outputs if slot in wanted]
        if not inputs or not outputs:
            return None
        body = self.body
        composite = _composite(
            body.replace(inputs=inputs, constants=(), equations=inside, outputs=outputs).renumbered()
        )
        if composite is None or not self.has_kernel(composite, tuple([body.types[slot] for slot in inputs]), {}):
            return None
        return part[0]._replace(primitive=composite, static={}, inputs=tuple(inputs), outputs=tuple(outputs))

    def _with_free(self, part: list[Equation]) -> list[Equation]:
        """Its equations, each after the free ones that it reads."""
        found: dict[int, Equation] = {}

        def include(slots: Sequence[int]) -> None:
            for slot in slots:
                if slot in self.free and slot not in found:
                    include(self.free[slot].inputs)
                    found[slot] = self.free[slot]

        for e in part:
            include(e.inputs)
            found[e.outputs[0]] = e
        return list(found.values())

    def _write_free(self, slots: Sequence[int]) -> None:
        """Write the free ops that an op outside of runs reads, once."""
        for slot in slots:
            if slot in self.free and slot not in self.written:
                self.written.add(slot)
                self._write_free(self.free[slot].inputs)
                self.equations.append(self.free[slot])


def _composite(body: Body) -> Composite | None:
    """The composite of a body, the same one for all that do the same; None where a static parameter has no hash."""
    does = tuple([(e.primitive, tuple(e.static), distinct(e.static), e.inputs, e.outputs) for e in body.equations])
    key = (does, body.outputs, tuple(body.types))
    try:
        found = _COMPOSITES.get(key)
    except TypeError:
        return None
    if found is None:
        if len(_COMPOSITES) >= _MOST_COMPOSITES:
            _COMPOSITES.clear()
        found = _COMPOSITES[key] = Composite("run", body)
    return found
