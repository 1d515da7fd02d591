"""`while_loop`: a loop as one op, which runs while its condition holds.

Forward mode is a `while_loop` whose carry includes tangents. Reverse mode uses a `scan` of the declared bound, in which
the iterations after the last one do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast, final

from typing_extensions import override

from ..ops.body import WhileParameters
from ..ops.dims import Dim
from ..ops.dispatch import Quietly
from ..ops.errors import ProgramError, RangeError, ShapeError, SourceLine, UnsupportedError, a_type
from ..ops.primitive import Context, Cost, Primitive, R, Static
from ..ops.protocol import Ops
from ..ops.rule_helpers import require_same_type, type_of
from ..ops.trees import first_difference, flatten, structure_paths, unflatten
from ..ops.types import BOOL, INT64, TensorType, is_float
from .derivatives import run_row_on_tape
from .forward_mode import ForwardMode
from .interpreter import BaseInterpreter, Interpreter, Variable
from .scan import loop_size, or_zeros, require_same_carry
from .tracer import Tracer, close_traces, constants, evaluate, structural_op

Lines: TypeAlias = "Mapping[int, SourceLine | None] | None"

# The op as a program calls it ----------------------------------------------------------------------------------------


def while_loop(ops: Interpreter[R], cond: Any, body: Any, init: Any, *, max_iterations: Dim | None) -> Any:
    """Bind the op of `Ops.while_loop`."""
    for name, f in (("cond", cond), ("body", body)):
        if not callable(f):
            raise ProgramError(f"{name} of a while_loop must be a function f(ops, carry), not {a_type(f)}")
    carried, structure = flatten(init)
    carried = [ops.adopt(ref) for ref in carried]
    with structural_op(ops, "while_loop"):
        limit = loop_size("while_loop", "max_iterations", max_iterations)
        if not carried:
            raise ShapeError("a while_loop carries at least one tensor: it returns nothing else")
        types = [*map(type_of, carried), TensorType((), INT64)]
        tester, part = loop_part(ops, types), loop_part(ops, types)
        flags = [
            tester.tracer.adopt(r) for r in flatten(cond(tester.tracer, unflatten(structure, tester.state[:-1])))[0]
        ]
        if len(flags) != 1 or flags[0].type != TensorType((), BOOL):
            given = str(flags[0].type) if len(flags) == 1 else f"a tree of {len(flags)} tensors"
            raise ShapeError(f"cond of a while_loop must give one boolean scalar, not {given}")
        found, built = flatten(body(part.tracer, unflatten(structure, part.state[:-1])))
        if built != structure:
            difference = first_difference(structure, built)
            raise ShapeError(
                f"the body of a while_loop must return a carry built like the one it gets, but {difference}"
            )
        new = [part.tracer.adopt(ref) for ref in found]
        require_same_carry(part.state[:-1], new, structure_paths(structure))
        with Quietly(ops.cursor):
            counted = part.tracer.add(part.state[-1], part.tracer.const(1, dtype="int64"))
            start = ops.const(0, dtype="int64")
    outs = bind_while(ops, tester, flags[0], part, [*new, counted], [*carried, start], limit)
    return unflatten(structure, outs[:-1])


class _Part(NamedTuple):
    """A body of a loop under construction: its tracer, and its carries, the counter last."""

    tracer: Tracer[Any]
    state: list[Variable]


def loop_part(ops: Interpreter[Any], types: Sequence[TensorType], lines: Lines = None) -> _Part:
    tracer = Tracer(ops, lines)
    state = [tracer.input(type_) for type_ in types]
    tracer.iteration = state[-1]
    return _Part(tracer, state)


# The loop as one op --------------------------------------------------------------------------------------------------


def bind_while(
    ops: Interpreter[R],
    tester: _Part,
    flag: Variable,
    part: _Part,
    new: Sequence[Variable],
    init: Sequence[R],
    limit: Dim | None,
    *,
    prune: bool = False,
) -> tuple[R, ...]:
    """Make the traced bodies closed over all the values that either uses, and bind the loop."""
    (test, body), captured = close_traces([(*tester, [flag]), (*part, new)], prune=prune)
    return ops.bind(WHILE, (*init, *captured), WhileParameters(test, body, limit)._asdict())


def _while_shape(*operands: TensorType, **static: Any) -> tuple[TensorType, ...]:
    loop = WhileParameters(**static)
    outputs = loop.body.output_types
    if loop.test.output_types != (TensorType((), BOOL),) or outputs[-1:] != (TensorType((), INT64),):
        raise ShapeError(f"a while_loop needs a test and a body that counts, not {loop.test} and {loop.body}")
    rows = [("test", operands, loop.test.input_types), ("body", operands, loop.body.input_types)]
    rows.append(("body, as it leaves it,", operands[: len(outputs)], outputs))
    for name, given, taken in rows:
        for i, (a, b) in enumerate(zip(given, taken, strict=True)):
            require_same_type(a, b, f"operand {i} of the loop is {a} where its {name} has {b}")
    return operands[: len(outputs)]


def run_while(ops: BaseInterpreter[R], /, *operands: R, **static: Any) -> tuple[R, ...]:
    """Run iterations while the condition holds, for a base interpreter without its own kernel."""
    loop = WhileParameters(**static)
    carries = len(loop.body.outputs)
    return iterate(ops, loop, ops.prepare_body(loop.test, carries), ops.prepare_body(loop.body, carries), *operands)


Prepared: TypeAlias = "Callable[[Sequence[R]], Callable[[Sequence[R]], Sequence[R]]]"
"""A body as returned by `BaseInterpreter.prepare_body`."""


def iterate(
    ops: BaseInterpreter[R], loop: WhileParameters, test: Prepared[R], body: Prepared[R], /, *operands: R
) -> tuple[R, ...]:
    """Return the same, with the bodies prepared. Raises RangeError where the condition still holds at the declared
    bound."""
    carries = len(loop.body.outputs)
    state, captured = operands[:carries], operands[carries:]
    goes_on, once = test(captured), None
    limit = None if loop.limit is None else int(loop.limit)
    done = 0
    while bool(ops.get(goes_on(state)[0])) if ops.computes else done != min(2, 2 if limit is None else limit):
        if done == limit:
            raise passed(limit)
        if once is None:  # what does not change is computed now: without an iteration it is not to be computed
            once = body(captured)
        state = tuple(once(state))
        done += 1
    return state


def passed(limit: int | None) -> RangeError:
    """Return the error of a loop that exceeds its bound."""
    message = f"cond still holds after max_iterations={limit} iterations: declare more, or let cond be False earlier"
    return RangeError(message, op="while_loop")


def _while_vjp(ops: Ops[Any], ctx: Context[Any], cotangents: tuple[Any, ...], /, **static: Any) -> tuple[Any, ...]:
    """Return the pullback of the same iterations as a scan of the declared bound, recomputed.

    It reads the number of iterations, so a loop that exceeded its bound is also detected in a program that only
    computes derivatives.
    """
    loop = WhileParameters(**static)
    body, carries = loop.body, len(loop.body.outputs)
    limit = cast("Dim", loop.limit)  # or `keeping` has raised

    def bounded(outer: Interpreter[Any], *refs: Any) -> tuple[Any, ...]:
        captured, count = refs[carries:-1], refs[-1]

        def step(inner: Interpreter[Any], state: tuple[Any, ...], i: Any) -> tuple[tuple[Any, ...], None]:
            def once(ops: Interpreter[Any], *state: Any) -> tuple[Any, ...]:
                return evaluate(ops, body, (*state, *captured), constants(ops, body))

            return inner.cond(inner.less(i, count), once, lambda ops, *state: state, *state), None

        final: tuple[Any, ...] = outer.scan(step, refs[:carries], outer.iota(shape=(limit,)))[0]
        return final

    inner = cast(Interpreter[Any], ops)
    tape, nodes, outs, _ = run_row_on_tape(inner, bounded, ctx.saved, (*ctx.needs, False))
    wanted = [i for i, needed in enumerate(ctx.needs) if needed]
    found = tape.pull(outs, list(cotangents), [nodes[i] for i in wanted], keep=False)
    result = dict(zip(wanted, found))
    return tuple([result.get(i) for i in range(len(ctx.needs))])


def _while_jvp(
    ops: Ops[Any], primals: tuple[Any, ...], outputs: tuple[Any, ...], tangents: tuple[Any, ...], /, **static: Any
) -> tuple[Any, ...]:
    """Return the loop run again, with the tangent of the carry."""
    loop = WhileParameters(**static)
    body, last = loop.body, len(loop.body.outputs) - 1
    moving, _ = body.moving([tangent is not None for tangent in tangents], last + 1)
    carried = [i for i in range(last) if moving[i]]
    if not carried:
        return (None,) * len(outputs)
    inner = cast(Interpreter[Any], ops)
    types = body.input_types
    row = [*types[:last], *[types[i] for i in carried], types[last]]
    tester, part = loop_part(inner, row, loop.test.lines), loop_part(inner, row, body.lines)

    tracer, state = tester
    given = [*state[:last], state[-1], *[tracer.adopt(ref) for ref in primals[last + 1 :]]]
    flag = evaluate(tracer, loop.test, given, constants(tracer, loop.test))[0]

    tracer, state = part
    moves = dict(zip(carried, state[last:-1]))
    moves |= {i: tracer.adopt(tangents[i]) for i in range(last + 1, len(types)) if moving[i]}
    forward = ForwardMode(tracer)
    refs = [*state[:last], state[-1], *[tracer.adopt(ref) for ref in primals[last + 1 :]]]
    duals = [forward.dual(ref, moves.get(i)) for i, ref in enumerate(refs)]
    outs = evaluate(forward, body, duals, constants(forward, body))
    new = [or_zeros(tracer, outs[i].tangent, types[i]) for i in carried]
    init = [*primals[:last], *[or_zeros(ops, tangents[i], types[i]) for i in carried], primals[last]]
    values = [out.value for out in outs]
    found = bind_while(inner, tester, flag, part, [*values[:last], *new, values[last]], init, loop.limit, prune=True)
    result = dict(zip(carried, found[last:-1]))
    return tuple([result.get(i) for i in range(len(outputs))])


@final
class _WhilePrimitive(Primitive):
    """`while_loop` has as many operands and outputs as its body requires, so they are counted here."""

    __slots__ = ()
    keeps_more = True
    zero_cotangents = False

    @override
    def operand_names(self, static: Static, count: int) -> tuple[str, ...]:
        carries = len(static["body"].outputs)
        names = (("carry", 0, carries), ("captured", carries, count))
        return tuple([f"{name}[{i}]" for name, start, end in names for i in range(end - start)])

    @override
    def saved_positions(self, needs: tuple[bool, ...], static: Static) -> tuple[int, ...]:
        """Return all operands, and the number of iterations."""
        return (*range(len(needs)), len(needs) + len(static["body"].outputs) - 1)

    @override
    def keeping(self, ops: Any, needs: tuple[bool, ...], static: Static) -> Static:
        """Require a bound of a loop that is differentiated in reverse."""
        body = static["body"]
        if static["limit"] is None:
            _, moved = body.moving(needs, len(body.outputs))
            if any(moves and is_float(type_.dtype) for moves, type_ in zip(moved, body.output_types)):
                raise UnsupportedError(
                    "reverse mode goes back through the iterations of a while_loop, so it needs a bound on their "
                    "number: give max_iterations=, take the derivative in forward mode (jvp), or ops.detach what the "
                    "loop reads",
                    op="while_loop",
                    region=ops.cursor.region.name,
                )
        return static

    @override
    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], static: Static) -> Cost:
        """Return the cost of the condition and the body, times the declared bound; once where none is declared."""
        loop = WhileParameters(**static)
        times: Dim = 1 if loop.limit is None else loop.limit
        test, body = loop.test.cost(), loop.body.cost()
        return Cost(times * (test.flops + body.flops), times * (test.bytes + body.bytes))


# Operands: the carry, an int64 0 from which the iterations are counted, then what cond and body captured. Outputs: the
# last carry, and how many iterations there were.
WHILE = _WhilePrimitive(
    "while_loop",
    operands=("*operands",),
    outputs=("*results",),
    shape=_while_shape,
    vjp=_while_vjp,
    jvp=_while_jvp,
    decomposition=run_while,
)
