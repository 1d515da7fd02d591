"""`cond` and `switch`: a choice between programs as one op. Its derivatives choose between the branches' derivatives.

The rules are here and not in the catalogue, because differentiating a body requires a tape and forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, final

from typing_extensions import override

from ..ops.body import Body
from ..ops.dims import Dim, maximum
from ..ops.errors import DtypeError, ProgramError, RangeError, ShapeError, a_type
from ..ops.primitive import Context, Cost, Primitive, R, Static
from ..ops.protocol import Ops
from ..ops.rule_helpers import require_same_type, type_of
from ..ops.trees import first_difference, flatten, structure_paths, unflatten
from ..ops.types import BOOL, TensorType, dtype_name
from .forward_mode import ForwardMode
from .interpreter import BaseInterpreter, Interpreter, Variable
from .scan import on_tape, or_zeros
from .tracer import Tracer, close_traces, constants, evaluate, structural_op

# The ops as a program calls them -------------------------------------------------------------------------------------


def cond(ops: Interpreter[R], pred: Any, true_fn: Any, false_fn: Any, operands: tuple[Any, ...]) -> Any:
    """Bind the op of `Ops.cond`."""
    pred = ops.adopt(pred)
    if pred.dtype != BOOL:
        raise DtypeError(
            f"pred must be a boolean scalar but is {type_of(pred)}: compare it with a number, or call ops.switch",
            op="cond",
            region=ops.cursor.region.name,
        )
    return _choose(ops, "cond", pred, {"true_fn": true_fn, "false_fn": false_fn}, operands)


def switch(ops: Interpreter[R], index: Any, branches: Any, operands: tuple[Any, ...]) -> Any:
    """Bind the op of `Ops.switch`."""
    index = ops.adopt(index)
    if not isinstance(branches, (tuple, list)) or not branches:
        raise ProgramError(f"the branches of a switch are a tuple or list of functions, not {branches!r:.80}")
    if index.dtype == BOOL:
        raise DtypeError(
            "index must be an integer scalar but is boolean: call ops.cond, or cast it",
            op="switch",
            region=ops.cursor.region.name,
        )
    return _choose(ops, "switch", index, {f"branches[{i}]": f for i, f in enumerate(branches)}, operands)


def _choose(
    ops: Interpreter[R], op: str, index: R, branches: dict[str, Callable[..., Any]], operands: tuple[Any, ...]
) -> Any:
    """Trace every branch, check that its results match those of the first, and bind the choice."""
    for name, f in branches.items():
        if not callable(f):
            raise ProgramError(f"{name} of a {op} must be a function f(ops, *operands), not {a_type(f)}")
    leaves, arguments = flatten(operands)
    leaves = [ops.adopt(ref) for ref in leaves]
    traced: list[tuple[Tracer[R], list[Variable]]] = []
    structure: Any = None
    with structural_op(ops, op):
        if index.shape != ():
            raise ShapeError(f"what a {op} chooses by must be a scalar but is {type_of(index)}")
        for name, f in branches.items():
            tracer = Tracer(ops, loops=False)
            found, built = flatten(f(tracer, *unflatten(arguments, [tracer.adopt(ref) for ref in leaves])))
            refs = [tracer.adopt(ref) for ref in found]
            if structure is None:
                first, structure = name, built
            elif built != structure:
                raise ShapeError(
                    f"the branches of a {op} must give results built alike, but in that of {name}, compared with "
                    f"{first}, {first_difference(structure, built)}"
                )
            traced.append((tracer, refs))
            _require_same_types(op, (first, *traced[0]), (name, tracer, refs), structure_paths(structure))
        if not traced[0][1]:
            raise ShapeError(f"the branches of a {op} must give at least one tensor")
    if index.dtype == BOOL:  # as a number False is 0
        traced.reverse()
    return unflatten(structure, bind_switch(ops, index, traced))


_Named = tuple[str, Tracer[Any], Sequence[Variable]]


def _require_same_types(op: str, one: _Named, other: _Named, paths: Sequence[str]) -> None:
    """Require that all branches return the same types, because the program uses the results of the one that runs."""
    for a, b, path in zip(one[2], other[2], paths):
        name = f"result.{path}" if path else "the result"

        def message(cure: str, name: str = name, a: Any = a, b: Any = b) -> str:
            return (
                f"{name} is {a.type} from {one[0]}{_line(one[1], a)} but {b.type} from {other[0]}"
                f"{_line(other[1], b)}, and the branches of a {op} must give the same types: {cure}"
            )

        if a.dtype != b.dtype:
            raise ShapeError(message(f"cast one with ops.cast(…, dtype='{dtype_name(a.dtype)}')"))
        require_same_type(a.type, b.type, lambda: message("give them one shape"))


def _line(tracer: Tracer[Any], ref: Variable) -> str:
    """Return the user's line of the op that made a result; empty for a result that was passed through."""
    for equation in tracer.trace.equations:
        if ref.slot in equation.outputs:
            source = tracer.lines.get(equation.ordinal)
            return "" if source is None else f" ({source})"
    return ""


# The choice as one op ------------------------------------------------------------------------------------------------


def bind_switch(
    ops: Interpreter[R], index: R, traced: Sequence[tuple[Tracer[R], Sequence[Variable]]], *, prune: bool = False
) -> tuple[R, ...]:
    """Make the traced branches closed over all the values that any of them uses, and bind the choice."""
    bodies, captured = close_traces([(tracer, (), outputs) for tracer, outputs in traced], prune=prune)
    return ops.bind(SWITCH, (index, *captured), {f"branch{i}": body for i, body in enumerate(bodies)})


def get_branches(static: Static) -> tuple[Body, ...]:
    """Return the branches among the static parameters of `switch`, in order."""
    return tuple([static[f"branch{i}"] for i in range(len(static))])


def _switch_shape(index: TensorType, *operands: TensorType, **static: Any) -> tuple[TensorType, ...]:
    bodies = get_branches(static)
    if not bodies:
        raise ShapeError("a switch needs at least one branch")
    if index.shape != () or index.dtype.kind not in "iub" or (index.dtype == BOOL and len(bodies) != 2):
        raise ShapeError(f"a switch of {len(bodies)} branches chooses by an integer scalar, not by {index}")
    first = bodies[0].output_types
    for number, body in enumerate(bodies):
        if len(body.inputs) != len(operands) or len(body.outputs) != len(first):
            raise ShapeError(f"branch {number} of a switch of {len(operands)} operands is {body}")
        pairs = [*zip(operands, body.input_types), *zip(first, body.output_types)]
        for i, (a, b) in enumerate(pairs):
            what = f"operand {i}" if i < len(operands) else f"result {i - len(operands)}"
            require_same_type(a, b, f"{what} of the switch is {a} where its branch {number} has {b}")
    return first


def chosen(number: int, count: int) -> int:
    """Return the number of the branch that runs. Raises RangeError for an index out of range."""
    if not 0 <= number < count:
        raise RangeError(f"index must be from 0 to {count - 1} but is {number}", op="switch")
    return number


def run_switch(ops: BaseInterpreter[R], index: R, /, *operands: R, **static: Any) -> tuple[R, ...]:
    """Run the chosen branch, for a base interpreter without its own kernel."""
    *others, body = bodies = get_branches(static)
    if ops.computes:
        body = bodies[chosen(int(ops.get(index)), len(bodies))]
    else:  # the peak is that of the largest
        for other in others:
            evaluate(ops, other, operands, constants(ops, other))
    return evaluate(ops, body, operands, constants(ops, body))


def _switch_vjp(ops: Ops[Any], ctx: Context[Any], cotangents: tuple[Any, ...], /, **static: Any) -> tuple[Any, ...]:
    """Return the pullback of the branch that ran; recomputes that branch."""
    index, *operands = ctx.saved
    needs, inner = ctx.needs[1:], cast(Interpreter[Any], ops)
    traced = [traced_pullback(inner, body, operands, needs, cotangents) for body in get_branches(static)]
    found = iter(bind_switch(inner, index, traced, prune=True))
    return (None, *[next(found) if needed else None for needed in needs])


def traced_pullback(
    ops: Interpreter[Any], body: Body, operands: Sequence[Any], needs: Sequence[bool], cotangents: Sequence[Any]
) -> tuple[Tracer[Any], list[Variable]]:
    """Trace a run of the body and its pullback: the cotangents of the operands that need one."""
    tracer = Tracer(ops, body.lines, loops=False)
    inputs = [tracer.adopt(ref) for ref in operands]
    arrived = {i: tracer.adopt(c) for i, c in enumerate(cotangents) if c is not None}
    tape, leaves, outs = on_tape(tracer, body, inputs, needs, ())
    wanted = [leaf for leaf, needed in zip(leaves, needs) if needed]
    found = tape.pull([outs[i] for i in arrived], list(arrived.values()), wanted, keep=False)
    return tracer, cast("list[Variable]", found)


def traced_pushforward(
    ops: Interpreter[Any], body: Body, operands: Sequence[Any], tangents: Sequence[Any], wanted: Sequence[int]
) -> tuple[Tracer[Any], list[Variable]]:
    """Trace a run of the body in forward mode: the tangents of the `wanted` outputs."""
    tracer = Tracer(ops, body.lines, loops=False)
    forward = ForwardMode(tracer)
    pairs = [(tracer.adopt(x), None if t is None else tracer.adopt(t)) for x, t in zip(operands, tangents)]
    outs = evaluate(forward, body, [forward.dual(x, t) for x, t in pairs], constants(forward, body))
    return tracer, [or_zeros(tracer, outs[i].tangent, body.output_types[i]) for i in wanted]


def _switch_jvp(
    ops: Ops[Any], primals: tuple[Any, ...], outputs: tuple[Any, ...], tangents: tuple[Any, ...], /, **static: Any
) -> tuple[Any, ...]:
    """Return the tangent of the branch that ran."""
    index, *operands = primals
    bodies = get_branches(static)
    moving = [tangent is not None for tangent in tangents[1:]]
    moved = [any(each) for each in zip(*[body.reach(moving) for body in bodies])]
    wanted = [i for i, moves in enumerate(moved) if moves]
    if not wanted:
        return (None,) * len(outputs)
    inner = cast(Interpreter[Any], ops)
    traced = [traced_pushforward(inner, body, operands, tangents[1:], wanted) for body in bodies]
    result = dict(zip(wanted, bind_switch(inner, index, traced, prune=True)))
    return tuple([result.get(i) for i in range(len(outputs))])


@final
class _SwitchPrimitive(Primitive):
    """`switch` has as many operands and outputs as its branches require, so they are counted here."""

    __slots__ = ()
    zero_cotangents = False

    @override
    def operand_names(self, static: Static, count: int) -> tuple[str, ...]:
        return ("index", *[f"operands[{i}]" for i in range(count - 1)])

    @override
    def saved_positions(self, needs: tuple[bool, ...], static: Static) -> tuple[int, ...]:
        """Return the index and all operands: the backward pass runs the branch again."""
        return tuple(range(len(needs)))

    @override
    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], static: Static) -> Cost:
        """Return the cost of the most expensive branch: the most flops, and the most bytes."""
        costs = [body.cost() for body in get_branches(static)]
        flops: Dim = maximum(*[cost.flops for cost in costs])
        return Cost(flops, maximum(*[cost.bytes for cost in costs]))


# Operands: the index, then all that any branch reads. Its static parameters are the branches, closed bodies that take
# all operands and give results of the same types.
SWITCH = _SwitchPrimitive(
    "switch",
    operands=("index", "*operands"),
    outputs=("*results",),
    shape=_switch_shape,
    vjp=_switch_vjp,
    jvp=_switch_jvp,
    decomposition=run_switch,
)
