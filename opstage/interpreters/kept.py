"""Values that a loop saves in each iteration for the backward pass, and products moved out of the backward loop."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from ..ops.body import Body, Equation, ScanParameters, with_opened
from ..ops.elementwise import ADD
from ..ops.layout import PERMUTE, TRANSPOSE2D
from ..ops.matmul import MATMUL
from ..ops.primitive import Kind, R
from ..ops.protocol import Ops
from ..ops.slicing import SLICE
from .interpreter import Interpreter, Variable
from .tape import Node, Tape
from .tracer import Tracer, constants, evaluate

# Values --------------------------------------------------------------------------------------------------------------


def keeping(ops: Interpreter[Any], loop: ScanParameters, needs: Sequence[bool]) -> ScanParameters:
    """The loop with the outputs that a backward pass on `ops` reads: it also stacks the incoming carries and, if the
    body has a product, the values that a tape saves in an iteration.

    Recomputing them would repeat the product; recomputing a body without one is cheap compared with the memory. Other
    layouts of carries and xs are not saved, nor are loop invariants.
    """
    body, carries = loop.body, loop.carries
    wanted = [*body.inputs[:carries]]
    reread = loop.reread
    if _has_product(body):
        tracer = Tracer(ops, body.lines)
        inputs = [tracer.input(type_) for type_ in body.input_types]
        tape, _, outs = on_tape(tracer, body, inputs, body.moving(needs, carries)[0], loop.kept)
        saved = [ref.slot for ref in tape.saved(outs)]
        wanted = [ref.slot for ref in inputs[:carries]]
        varying = [ref.slot for ref in inputs[: carries + loop.entries]]
        sources = _sources(tracer.trace.equations, varying, saved)
        wanted += [slot for slot in sources if slot not in varying]
        reread = tuple([i for i, slot in enumerate(varying[carries:]) if slot in sources])
        body = tracer.finish(inputs, [out.value for out in outs])
    outputs = [*body.outputs]
    rows = {slot: i for i, slot in enumerate(outputs) if i >= carries}
    for slot in wanted:
        if slot not in rows:
            rows[slot] = len(outputs)
            outputs.append(slot)
    equations = with_opened(list(body.equations), outputs)
    return loop._replace(
        body=body.replace(equations=equations, outputs=outputs),
        kept=tuple([rows[slot] for slot in wanted]),
        reread=reread,
    )


def on_tape(
    tracer: Tracer[Any], body: Body, inputs: Sequence[Variable], moving: Sequence[bool], kept: Collection[int]
) -> tuple[Tape[Variable], list[Node[Variable]], tuple[Node[Variable], ...]]:
    """One iteration on a tape over the tracer: the tape, its inputs and its outputs.

    The `kept` outputs may exist only for the tape: their use of a residual does not expand a composite.
    """
    read = [slot for i, slot in enumerate(body.outputs) if i not in kept]
    body = body.replace(equations=with_opened(list(body.equations), read))
    tape = Tape(tracer)
    leaves = [tape.leaf(ref) if moves else tape.wrap(ref) for ref, moves in zip(inputs, moving)]
    return tape, leaves, evaluate(tape, body, leaves, constants(tape, body))


def _has_product(body: Body) -> bool:
    return any(
        e.primitive.kind is Kind.CONTRACTION or any(type(v) is Body and _has_product(v) for v in e.static.values())
        for e in body.equations
    )


def _sources(equations: Sequence[Equation], varying: Sequence[int], saved: Sequence[int]) -> list[int]:
    """Those results of the equations, or varying inputs, from which the saved slots are made by layout ops only."""
    makers = {slot: e for e in equations for slot in e.outputs}
    moving = set(varying)
    for e in equations:
        if not moving.isdisjoint(e.inputs):
            moving.update(e.outputs)
    found: dict[int, None] = {}
    todo = list(saved)
    for slot in todo:  # grows while it is walked
        maker = makers.get(slot)
        if slot not in moving:
            continue
        if maker is None:
            found[slot] = None
        elif maker.primitive.kind is Kind.LAYOUT and maker.primitive is not SLICE:
            todo += maker.inputs
        else:
            found[slot] = None
    return list(found)


# Products ------------------------------------------------------------------------------------------------------------


class Product(NamedTuple):
    """leftᵀ · right, of slots of a body."""

    left: int
    right: int


def products(equations: Sequence[Equation]) -> Callable[[int], list[Product] | None]:
    """A function from a slot to the products whose sum it is; None where it is anything else."""
    makers = {slot: e for e in equations for slot in e.outputs}

    def terms(slot: int) -> list[Product] | None:
        maker = makers.get(slot)
        if maker is None:
            return None
        if maker.primitive is ADD:
            first, second = map(terms, maker.inputs)
            return [*first, *second] if first is not None and second is not None else None
        if _transposes(maker):
            turned = terms(maker.inputs[0])
            return None if turned is None else [Product(right, left) for left, right in turned]
        transposed = makers.get(maker.inputs[0]) if maker.primitive is MATMUL else None
        if transposed is None or not _transposes(transposed):
            return None
        return [Product(transposed.inputs[0], maker.inputs[1])]

    return terms


def _transposes(e: Equation) -> bool:
    return e.primitive is TRANSPOSE2D or (e.primitive is PERMUTE and e.static["axes"] == (1, 0))


def product_of_rows(ops: Ops[R], left: R, right: R) -> R:
    """Σᵢ leftᵢᵀ · rightᵢ over the matrices of two stacks, as one product."""
    return ops.matmul(ops.transpose2d(_together(ops, left)), _together(ops, right))


def _together(ops: Ops[R], rows: R) -> R:
    count, height, width = rows.shape
    return ops.reshape(rows, shape=(count * height, width))
