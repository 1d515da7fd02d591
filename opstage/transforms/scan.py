"""`scan`: a loop as one op. Its body is traced once, and its derivatives are loops over the body's derivatives.

The rules are here and not in the catalogue, because differentiating a body requires a tape and forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast, final

from typing_extensions import override

from ..ops.body import Body, Equation, ScanParameters, with_opened
from ..ops.dims import Dim, require_at_most, require_equal
from ..ops.dispatch import Quietly
from ..ops.elementwise import ADD
from ..ops.errors import ProgramError, ShapeError, a_type
from ..ops.layout import PERMUTE, TRANSPOSE2D
from ..ops.matmul import MATMUL
from ..ops.primitive import Context, Cost, Kind, Primitive, R, Static
from ..ops.protocol import Ops
from ..ops.rule_helpers import add_all, require_same_type, type_of
from ..ops.slicing import SLICE
from ..ops.static_arguments import InvalidStatic, as_dim
from ..ops.trees import first_difference, flatten, structure_paths, unflatten
from ..ops.types import TensorType, dtype_name, show_shape
from .forward_mode import ForwardMode
from .interpreter import BaseInterpreter, Interpreter, Variable
from .tape import Node, Tape
from .tracer import Tracer, constants, evaluate, structural_op

# The op as a program calls it ----------------------------------------------------------------------------------------


def scan(
    ops: Interpreter[R], f: Callable[..., Any], carry: Any, xs: Any, *, reverse: bool, length: Dim | None
) -> tuple[Any, Any]:
    """Bind the op of `Ops.scan`."""
    carried, structure = flatten(carry)
    carried = [ops.adopt(ref) for ref in carried]
    columns, xs_structure = flatten(xs)
    columns = [ops.adopt(ref) for ref in columns]
    with structural_op(ops, "scan"):
        count = _length(columns, structure_paths(xs_structure), length)
        tracer = Tracer(ops)
        state = [tracer.input(type_of(ref)) for ref in carried]
        entries = [tracer.input(_entry(type_of(ref))) for ref in columns]
        result = f(tracer, unflatten(structure, state), unflatten(xs_structure, entries))
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise ProgramError(
                "the body of a scan returns a pair (carry, y), with y None if "
                f"nothing is stacked, not {_describe(result)}"
            )
        carry_out, carry_out_structure = flatten(result[0])
        if carry_out_structure != structure:
            difference = first_difference(structure, carry_out_structure)
            raise ShapeError(f"the body of a scan must return a carry built like the one it gets, but {difference}")
        new_state = [tracer.adopt(ref) for ref in carry_out]
        require_same_carry(state, new_state, structure_paths(structure))
        ys, ys_structure = flatten(result[1])
        new_ys = [tracer.adopt(ref) for ref in ys]
        if tracer.iteration is not None:
            entries.append(tracer.iteration)
            with Quietly(ops.cursor):
                columns.append(ops.iota(shape=(count,)))
    out = bind_scan(
        tracer, _pairs(state, carried), _pairs(entries, columns), new_state, new_ys, reverse=reverse, length=count
    )
    return unflatten(structure, out.carry), unflatten(ys_structure, out.ys)


def _length(columns: Sequence[Any], paths: Sequence[str], length: Dim | None) -> Any:
    """Return the number of iterations, a Dim: the common leading size of xs."""
    count = loop_size("scan", "length", length)
    first = f"length is {count}"
    for ref, path in zip(columns, paths):
        name = f"xs.{path}" if path else "xs"
        if not len(ref.shape):
            raise ShapeError(f"{name} is a scalar: a scan runs over the leading axis of xs; put constants in the carry")
        if count is None:
            count, first = ref.shape[0], f"{name} is {show_shape(ref.shape)}"
        else:
            said, shape = first, ref.shape
            require_equal(
                count,
                shape[0],
                lambda: f"{said} but {name} is {show_shape(shape)}: the leading axes {count} and {shape[0]} differ",
            )
    if count is None:
        raise ShapeError("a scan over no xs needs to know how often it runs: give length=")
    return count


def loop_size(op: str, name: str, value: Any) -> Any:
    """Return a number of iterations, a dim of at least 0, or None if it is not given."""
    size = None if value is None else as_dim(op, name, value)
    if isinstance(size, InvalidStatic):
        size.raise_()
    if size is not None:
        require_at_most(0, size, f"{name} must be at least 0 but is {size}")
    return size


def require_same_carry(state: Sequence[Variable], new: Sequence[Variable], paths: Sequence[str]) -> None:
    """Require that a carry has the same type after the body as before, because the next iteration takes it."""
    for before, after, path in zip(state, new, paths):
        name = f"carry.{path}" if path else "the carry"

        def message(cure: str, name: str = name, before: Any = before, after: Any = after) -> str:
            return (
                f"{name} comes into the body as {before.type} but leaves it as {after.type}, and the next iteration "
                f"takes what this one returns: {cure}"
            )

        if after.dtype != before.dtype:
            cure = f"cast it with ops.cast(…, dtype='{dtype_name(before.dtype)}'), or start with a carry of the other"
            raise ShapeError(message(f"{cure} dtype"))
        cure = f"give it the shape {show_shape(before.shape)} before it is returned, or start with the other shape"
        require_same_type(before.type, after.type, lambda: message(cure))


def _describe(result: Any) -> str:
    if isinstance(result, (tuple, list)):
        return f"{a_type(result)} of {len(result)}"
    return a_type(result)


# The loop as one op --------------------------------------------------------------------------------------------------


class _Scanned(NamedTuple):
    """The results of a bound scan."""

    carry: tuple[Any, ...]
    ys: tuple[Any, ...]


_Pairs: TypeAlias = "list[tuple[Variable, Any]]"
"""Inputs of a body, each with the ref that it replaces (for xs, the one whose entries it replaces)."""


def _pairs(inputs: Iterable[Variable], refs: Iterable[Any]) -> _Pairs:
    return list(zip(inputs, refs, strict=True))


def bind_scan(
    tracer: Tracer[Any],
    carry: _Pairs,
    xs: _Pairs,
    carry_out: Sequence[Variable],
    ys: Sequence[Variable],
    *,
    reverse: bool,
    length: Dim,
    prune: bool = False,
) -> _Scanned:
    """Close the traced body and bind the loop over it, without those xs and captured refs that the body never reads."""
    body = tracer.finish([i for i, _ in (*carry, *xs, *tracer.captured)], [*carry_out, *ys], prune=prune)
    read = body.read()
    xs, captured = ([pair for pair in pairs if pair[0].slot in read] for pairs in (xs, tracer.captured))
    operands = [*carry, *xs, *captured]
    refs = tuple([ref for _, ref in operands])
    tracer.captured.clear()
    loop = ScanParameters(
        body.taking([i.slot for i, _ in operands]), reverse, length, len(carry), len(xs), (), tuple(range(len(xs)))
    )
    outs = tracer.inner.bind(SCAN, refs, loop._asdict())
    final, stacked = len(carry), len(carry) + len(ys)
    return _Scanned(outs[:final], outs[final:stacked])


def _scan_shape(*operands: TensorType, **static: Any) -> tuple[TensorType, ...]:
    loop = ScanParameters(**static)
    if not all(type(count) is int and 0 <= count <= len(operands) for count in (loop.carries, loop.entries)):
        raise ShapeError(f"a loop of {len(operands)} operands has {loop.carries} carries and {loop.entries} entries")
    inputs, outputs = loop.body.input_types, loop.body.output_types
    for i, (operand, type_) in enumerate(zip(operands, inputs, strict=True)):
        expected = _rows(type_, loop.length) if 0 <= i - loop.carries < loop.entries else type_
        require_same_type(operand, expected, f"operand {i} of the loop is {operand} where its body takes {expected}")
    return (*outputs[: loop.carries], *[_rows(type_, loop.length) for type_ in outputs[loop.carries :]])


def run_loop(ops: BaseInterpreter[R], /, *operands: R, **static: Any) -> tuple[R, ...]:
    """Run the iterations in order, for a base interpreter without its own kernel."""
    loop = ScanParameters(**static)
    return run_iterations(
        ops, loop, ops.prepare_body(loop.body, loop.carries + loop.entries, length=int(loop.length)), *operands
    )


def run_iterations(
    ops: BaseInterpreter[R],
    loop: ScanParameters,
    prepared: Callable[[Sequence[R]], Callable[[Sequence[R]], Sequence[R]]],
    /,
    *operands: R,
) -> tuple[R, ...]:
    """Return the same, with the body prepared by `ops.prepare_body`."""
    body, length, carries, split = loop.body, int(loop.length), loop.carries, loop.carries + loop.entries
    state, xs, iterate = operands[:carries], operands[carries:split], prepared(operands[split:])
    types = body.output_types[carries:]
    ys = [ops.rows(type_, length) for type_ in types]
    for i in reversed(range(length)) if loop.reverse else range(length):
        outs = iterate((*state, *[ops.row(x, i) for x in xs]))
        state = tuple(outs[:carries])
        for rows, value in zip(ys, outs[carries:]):
            rows[i] = value
    return (*state, *[ops.stacked(rows, type_) for rows, type_ in zip(ys, types)])


def _scan_vjp(ops: Ops[Any], ctx: Context[Any], cotangents: tuple[Any, ...], /, **static: Any) -> tuple[Any, ...]:
    """Return the reverse loop over the values saved in each iteration: it pulls the cotangent of the carry back through
    the iteration, recomputes what was not saved, and accumulates the cotangents of captured tensors. A cotangent that
    is a sum of products is computed after the loop, as a product of the stacked factors."""
    loop = ScanParameters(**static)
    body, carries, split = loop.body, loop.carries, loop.carries + loop.entries
    types = body.input_types
    xs, captured, kept = _parts(ctx.saved, loop.entries, len(types) - split)
    moving, moved = body.moving(ctx.needs, carries)

    tracer = Tracer(cast(Interpreter[Any], ops), body.lines)
    state = [tracer.input(type_) for type_ in types[:carries]]
    entries = [tracer.input(type_) for type_ in types[carries:split]]
    outside = [tracer.wrap(ref) for ref in captured]
    # Cotangents: of the carry, from the iteration before; of stacked outputs, from outside, where any came.
    coming = {i: tracer.input(types[i]) for i in range(carries) if moving[i]}
    arrived = {
        i: tracer.input(_entry(ctx.outputs[i]))
        for i, moves in enumerate(moved)
        if i >= carries and moves and cotangents[i] is not None
    }

    tape, inputs, outs = on_tape(tracer, body, [*state, *entries, *outside], moving, loop.kept)
    seeds = coming | arrived
    wanted = [i for i, moves in enumerate(moving) if moves]
    found = tape.pull([outs[i] for i in seeds], list(seeds.values()), [inputs[i] for i in wanted], keep=False)
    pulled: dict[int, Any] = dict(zip(wanted, found))
    rows = _pairs([outs[i].value for i in loop.kept], kept) + _pairs(entries, xs)
    rows += _pairs(arrived.values(), [cotangents[i] for i in arrived])
    if tracer.iteration is not None:  # a rule asked for it
        rows.append((tracer.iteration, ops.iota(shape=(loop.length,))))
    ys = {pulled[i].slot: pulled[i] for i in range(carries, split) if ctx.needs[i]}
    given = {ref.slot for ref, _ in rows}
    after: dict[int, list[Product]] = {}
    terms = products(tracer.trace.equations)
    for i in range(split, len(types)):
        factors = terms(pulled[i].slot) if ctx.needs[i] else None
        if factors is not None:
            after[i] = factors
            ys |= {slot: tracer.ref(slot) for product in factors for slot in product if slot not in given}
    sums = {i: tracer.input(types[i]) for i in range(split, len(types)) if ctx.needs[i] and i not in after}
    out = bind_scan(
        tracer,
        _pairs(coming.values(), [or_zeros(ops, cotangents[i], types[i]) for i in coming])
        + _pairs(sums.values(), [or_zeros(ops, None, types[i]) for i in sums]),
        rows,
        [pulled[i] for i in coming] + [tracer.add(total, pulled[i]) for i, total in sums.items()],
        list(ys.values()),
        reverse=not loop.reverse,
        length=loop.length,
        prune=True,
    )
    stacked = {ref.slot: ref_rows for ref, ref_rows in rows} | dict(zip(ys, out.ys))
    result = dict(zip([*coming, *sums], out.carry))
    for i in range(carries, split):
        if ctx.needs[i]:
            result[i] = stacked[pulled[i].slot]
    for i, factors in after.items():
        result[i] = add_all(ops, *[product_of_rows(ops, stacked[left], stacked[right]) for left, right in factors])
    return tuple([result[i] if needed else None for i, needed in enumerate(ctx.needs)])


def _scan_jvp(
    ops: Ops[Any], primals: tuple[Any, ...], outputs: tuple[Any, ...], tangents: tuple[Any, ...], /, **static: Any
) -> tuple[Any, ...]:
    """Return the loop run again, with the tangent of the carry."""
    loop = ScanParameters(**static)
    body, carries, split = loop.body, loop.carries, loop.carries + loop.entries
    types = body.input_types
    moving, moved = body.moving([tangent is not None for tangent in tangents], carries)

    tracer = Tracer(cast(Interpreter[Any], ops), body.lines)
    inside = [tracer.input(type_) for type_ in types[:split]]
    outside = [tracer.wrap(ref) for ref in primals[split:]]
    moves = {i: tracer.input(types[i]) for i in range(split) if moving[i]}
    moves_outside = {i: tracer.wrap(tangents[i]) for i in range(split, len(types)) if moving[i]}
    everywhere = moves | moves_outside

    forward = ForwardMode(tracer)
    duals = [forward.dual(ref, everywhere.get(i)) for i, ref in enumerate((*inside, *outside))]
    outs = evaluate(forward, body, duals, constants(forward, body))
    carried = [i for i in moves if i < carries]
    stacked = [i for i in range(carries, len(outs)) if moved[i]]
    tangent = {i: or_zeros(tracer, outs[i].tangent, body.output_types[i]) for i in (*carried, *stacked)}
    out = bind_scan(
        tracer,
        _pairs(inside[:carries], primals[:carries])
        + _pairs([moves[i] for i in carried], [or_zeros(ops, tangents[i], types[i]) for i in carried]),
        _pairs(inside[carries:], primals[carries:split])
        + [(move, tangents[i]) for i, move in moves.items() if i >= carries],
        [out.value for out in outs[:carries]] + [tangent[i] for i in carried],
        [tangent[i] for i in stacked],
        reverse=loop.reverse,
        length=loop.length,
        prune=True,
    )
    moved_out = dict(zip(carried, out.carry[carries:])) | dict(zip(stacked, out.ys))
    return tuple([moved_out.get(i) for i in range(len(outputs))])


@final
class _ScanPrimitive(Primitive):
    """`scan` has as many operands and outputs as its body requires, so they are counted here."""

    __slots__ = ()
    keeps_more = True
    zero_cotangents = False  # those of the stacked carries, mostly unread, would be as large as the history

    @override
    def operand_names(self, static: Static, count: int) -> tuple[str, ...]:
        carries, split = static["carries"], static["carries"] + static["entries"]
        names = (("carry", 0, carries), ("xs", carries, split), ("captured", split, count))
        return tuple([f"{name}[{i}]" for name, start, end in names for i in range(end - start)])

    @override
    def saved_positions(self, needs: tuple[bool, ...], static: Static) -> tuple[int, ...]:
        """Return the xs that are read again, captured tensors, and the values saved in each iteration."""
        loop = ScanParameters(**static)
        xs = [loop.carries + i if i in loop.reread else -1 for i in range(loop.entries)]
        return (*xs, *range(loop.carries + loop.entries, len(needs)), *[len(needs) + i for i in loop.kept])

    @override
    def keeping(self, ops: Any, needs: tuple[bool, ...], static: Static) -> Static:
        return keeping(ops, ScanParameters(**static), needs)._asdict()

    @override
    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], static: Static) -> Cost:
        """Return the cost of the body times the number of iterations, and the stacked results written once."""
        loop = ScanParameters(**static)
        iteration = loop.body.cost()
        written: Dim = 0
        for rows in outputs[loop.carries :]:
            written = written + rows.nbytes
        return Cost(loop.length * iteration.flops, loop.length * iteration.bytes + written)


# Operands: carry, xs, then what the body captured. Outputs: the last carry, the stacked y's, and what is kept for a
# backward pass: one carry per iteration and, if the body has a product, what the derivatives of its ops read. The vjp
# is a scan the other way, which computes anew what was not kept.
SCAN = _ScanPrimitive(
    "scan",
    operands=("*operands",),
    outputs=("*results",),
    shape=_scan_shape,
    vjp=_scan_vjp,
    jvp=_scan_jvp,
    decomposition=run_loop,
)


# What the backward pass reads -----------------------------------------------------------------------------------------


def keeping(ops: Interpreter[Any], loop: ScanParameters, needs: Sequence[bool]) -> ScanParameters:
    """Return the loop with the outputs that a backward pass on `ops` reads: it also stacks the incoming carries and, if
    the body has a product, the values that a tape saves in an iteration.

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
    """Return one iteration on a tape over the tracer: the tape, its inputs and its outputs.

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
    """Return those results of the equations, or varying inputs, from which the saved slots are made by layout ops
    only."""
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


# Products moved out of the backward loop ------------------------------------------------------------------------------


class Product(NamedTuple):
    """leftᵀ · right, of slots of a body."""

    left: int
    right: int


def products(equations: Sequence[Equation]) -> Callable[[int], list[Product] | None]:
    """Return a function from a slot to the products whose sum it is; None where it is anything else."""
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
    """Return Σᵢ leftᵢᵀ · rightᵢ over the matrices of two stacks, as one product."""
    return ops.matmul(ops.transpose2d(_together(ops, left)), _together(ops, right))


def _together(ops: Ops[R], rows: R) -> R:
    count, height, width = rows.shape
    return ops.reshape(rows, shape=(count * height, width))


# Small parts ---------------------------------------------------------------------------------------------------------


def _entry(rows: TensorType) -> TensorType:
    """Return the type of one entry along the leading axis."""
    return TensorType(rows.shape[1:], rows.dtype)


def _rows(entry: TensorType, length: Dim) -> TensorType:
    """Return the type of `length` entries, stacked."""
    return TensorType((length, *entry.shape), entry.dtype)


def or_zeros(ops: Ops[R], ref: R | None, type: TensorType) -> R:
    """Return the ref, or zeros of its type for None."""
    return ops.full(shape=type.shape, value=0.0, dtype=type.dtype) if ref is None else ref


def _parts(refs: Sequence[R], *sizes: int) -> tuple[Sequence[R], ...]:
    """Return consecutive parts with the given sizes, and the rest."""
    parts = []
    for size in sizes:
        parts.append(refs[:size])
        refs = refs[size:]
    return (*parts, refs)
