"""`remat`: a closed body as one op whose backward pass runs the body again, and keeps none of its intermediate values.

The derivative of the op is one more of its kind, whose body runs the program on a tape. A compiled program expands
both. What a rule recomputes is marked, and not merged with the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast, final

from typing_extensions import override

from ..ops.body import Body
from ..ops.errors import ProgramError, ShapeError, a_type
from ..ops.primitive import Context, Cost, Primitive, R, Static
from ..ops.protocol import Ops
from ..ops.rule_helpers import require_same_type
from ..ops.trees import flatten, unflatten
from ..ops.types import TensorType
from .cond import traced_pullback, traced_pushforward
from .interpreter import Interpreter, Variable
from .tracer import Tracer, close_traces, constants, evaluate, structural_op

# The op as a program calls it -----------------------------------------------------------------------------------------


def remat(ops: Interpreter[R], f: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """See `Ops.remat`."""
    if not callable(f):
        raise ProgramError(f"f of a remat must be a function f(ops, *operands), not {a_type(f)}")
    leaves, structure = flatten(operands)
    is_ref = [hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves]
    with structural_op(ops, "remat"):
        tracer = Tracer(ops, loops=False)
        inside = [tracer.adopt(ops.adopt(leaf)) if ref else leaf for leaf, ref in zip(leaves, is_ref)]
        found, built = flatten(f(tracer, *unflatten(structure, inside)))
        outputs = [tracer.adopt(ref) for ref in found]
    return unflatten(built, bind_remat(ops, tracer, outputs) if outputs else ())


# The op ---------------------------------------------------------------------------------------------------------------


def bind_remat(
    ops: Interpreter[R], tracer: Tracer[R], outputs: Sequence[Variable], *, prune: bool = False
) -> tuple[R, ...]:
    """Make the traced body closed over the values that it reads, and bind it."""
    (body,), captured = close_traces([(tracer, (), outputs)], prune=prune)
    return ops.bind(REMAT, tuple(captured), {"body": body})


def _shape(*operands: TensorType, body: Body) -> tuple[TensorType, ...]:
    if len(operands) != len(body.inputs):
        raise ShapeError(f"a remat of {len(operands)} operands has a body of {len(body.inputs)} inputs")
    for i, (a, b) in enumerate(zip(operands, body.input_types)):
        require_same_type(a, b, f"operand {i} of the remat is {a} where its body takes {b}")
    return body.output_types


def _vjp(ops: Ops[Any], ctx: Context[Any], cotangents: tuple[Any, ...], /, *, body: Body) -> tuple[Any, ...]:
    """Return the pullback, which runs the body again."""
    inner = cast(Interpreter[Any], ops)
    found = iter(bind_remat(inner, *traced_pullback(inner, body, ctx.saved, ctx.needs, cotangents), prune=True))
    return tuple([next(found) if needed else None for needed in ctx.needs])


def _jvp(
    ops: Ops[Any], primals: tuple[Any, ...], outputs: tuple[Any, ...], tangents: tuple[Any, ...], /, *, body: Body
) -> tuple[Any, ...]:
    inner = cast(Interpreter[Any], ops)
    moved = body.reach([tangent is not None for tangent in tangents])
    wanted = [i for i, moves in enumerate(moved) if moves]
    if not wanted:
        return (None,) * len(outputs)
    found = bind_remat(inner, *traced_pushforward(inner, body, primals, tangents, wanted), prune=True)
    result = dict(zip(wanted, found))
    return tuple([result.get(i) for i in range(len(outputs))])


def _run(ops: Ops[R], /, *operands: R, body: Body) -> tuple[R, ...]:
    inner = cast(Interpreter[Any], ops)
    return evaluate(inner, body, operands, constants(inner, body))


@final
class _RematPrimitive(Primitive):
    """Its backward pass reads the operands, and its cost is that of its body."""

    __slots__ = ()
    zero_cotangents = False

    @override
    def saved_positions(self, needs: tuple[bool, ...], static: Static) -> tuple[int, ...]:
        """Return all operands: the backward pass runs the body again."""
        return tuple(range(len(needs)))

    @override
    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], static: Static) -> Cost:
        cost: Cost = static["body"].cost()
        return cost


REMAT = _RematPrimitive(
    "remat", operands=("*operands",), outputs=("*results",), shape=_shape, vjp=_vjp, jvp=_jvp, decomposition=_run
)
REMAT.recomputes = True
