"""Optimizer updates: one step for one parameter.

`p` is the parameter, `g` its gradient, and every state tensor has p's shape and dtype. Learning rates and bias
corrections are scalar operands, so that a schedule changes values but not the program. Each update is a composite whose
decomposition fixes the order of the float operations: a fused kernel must give the same bits. Formulas are those of
torch.optim; scalars are combined before they are applied to a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..dims import Dim, UndecidedDimError, ratio, require_at_most
from ..errors import ShapeError
from ..primitive import Primitive, R
from ..rules import same_type
from ..types import TensorType, require_float, require_same_dtype, show_shape
from ..untrusted import brief

if TYPE_CHECKING:
    from ..protocol import Ops

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of Muon's iteration x <- a·x + (b·s + c·s²)·x with s = x·xᵀ."""


_SCALARS = ("lr", "c1", "c2")
"""Operands that are scalars of a step."""


def _update(decomposition: Callable[..., Any], *, flops: int, matrix: bool = False) -> Primitive:
    """Make an update (p, g, *state, *scalars) -> (new p, *new state); `flops` counts operations per element of p.

    Its name and operands are those of the decomposition `_name(ops, p, g, …)`.
    """
    code = decomposition.__code__
    operands = code.co_varnames[1 : code.co_posonlyargcount]
    scalars = [name for name in operands if name in _SCALARS]
    state = operands[2 : len(operands) - len(scalars)]

    def shape(*operands: TensorType, **static: Any) -> tuple[TensorType, ...]:
        p, g, *rest = operands
        require_float(p, "p")
        if matrix:
            _require_matrix(p)
            _require_iterations(**static)
        same_type(p, g, "p", "g")
        for x, operand in zip(rest, state):
            same_type(p, x, "p", operand)
        for x, operand in zip(rest[len(state) :], scalars):
            if x.shape:
                raise ShapeError(f"{operand} must be a scalar but is {show_shape(x.shape)}")
            require_same_dtype(p, x, "p", operand)
        return (p,) * (1 + len(state))

    def total(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
        return flops * outputs[0].size if not matrix else _muon_flops(outputs[0], **static)

    return Primitive(
        f"{decomposition.__name__[1:]}_update",
        operands=operands,
        outputs=("p", *state),
        shape=shape,
        decomposition=decomposition,
        flops=total,
    )


def _times(ops: Ops[R], x: R, scalar: R) -> R:
    """Return scalar · x for a scalar operand."""
    return ops.mul(x, ops.broadcast_to(scalar, shape=x.shape))


def _plus(ops: Ops[R], x: R, scalar: R) -> R:
    return ops.add(x, ops.broadcast_to(scalar, shape=x.shape))


def _plus_static(ops: Ops[R], x: R, value: float) -> R:
    return ops.add(x, ops.full(shape=x.shape, value=value, dtype=x.dtype))


def _decayed(ops: Ops[R], p: R, g: R, weight_decay: float) -> R:
    """Return the gradient with the penalty ½·weight_decay·p² added."""
    return ops.add(g, ops.scale(p, c=weight_decay)) if weight_decay else g


def _shrunk(ops: Ops[R], p: R, lr: R, weight_decay: float) -> R:
    """Return (1 - lr·weight_decay) · p: decoupled weight decay (Loshchilov & Hutter 2019)."""
    if not weight_decay:
        return p
    one = ops.full(shape=(), value=1.0, dtype=p.dtype)
    return _times(ops, p, ops.sub(one, ops.scale(lr, c=weight_decay)))


def _average(ops: Ops[R], average: R, x: R, rate: float) -> R:
    """Return rate · average + (1 - rate) · x."""
    return ops.add(ops.scale(average, c=rate), ops.scale(x, c=1 - rate))


# Gradient descent ----------------------------------------------------------------------------------------------------


def _sgd(ops: Ops[R], p: R, g: R, lr: R, /, *, weight_decay: float) -> tuple[R, ...]:
    return (ops.sub(p, _times(ops, _decayed(ops, p, g, weight_decay), lr)),)


SGD_UPDATE = _update(_sgd, flops=4)


def _momentum(
    ops: Ops[R], p: R, g: R, velocity: R, lr: R, /, *, momentum: float, nesterov: bool, weight_decay: float
) -> tuple[R, ...]:
    g = _decayed(ops, p, g, weight_decay)
    velocity = ops.add(ops.scale(velocity, c=momentum), g)
    step = ops.add(g, ops.scale(velocity, c=momentum)) if nesterov else velocity
    return ops.sub(p, _times(ops, step, lr)), velocity


MOMENTUM_UPDATE = _update(_momentum, flops=8)

# Adaptive step sizes -------------------------------------------------------------------------------------------------


def _adagrad(ops: Ops[R], p: R, g: R, total: R, lr: R, /, *, eps: float, weight_decay: float) -> tuple[R, ...]:
    g = _decayed(ops, p, g, weight_decay)
    total = ops.add(total, ops.mul(g, g))
    step = ops.div(g, _plus_static(ops, ops.sqrt(total), eps))
    return ops.sub(p, _times(ops, step, lr)), total


ADAGRAD_UPDATE = _update(_adagrad, flops=9)


def _rmsprop(
    ops: Ops[R], p: R, g: R, square: R, lr: R, /, *, alpha: float, eps: float, weight_decay: float
) -> tuple[R, ...]:
    g = _decayed(ops, p, g, weight_decay)
    square = _average(ops, square, ops.mul(g, g), alpha)
    step = ops.div(g, _plus_static(ops, ops.sqrt(square), eps))
    return ops.sub(p, _times(ops, step, lr)), square


RMSPROP_UPDATE = _update(_rmsprop, flops=11)


def _adadelta(
    ops: Ops[R], p: R, g: R, square: R, delta: R, lr: R, /, *, rho: float, eps: float, weight_decay: float
) -> tuple[R, ...]:
    g = _decayed(ops, p, g, weight_decay)
    square = _average(ops, square, ops.mul(g, g), rho)
    ratio_of_roots = ops.div(ops.sqrt(_plus_static(ops, delta, eps)), ops.sqrt(_plus_static(ops, square, eps)))
    step = ops.mul(ratio_of_roots, g)
    delta = _average(ops, delta, ops.mul(step, step), rho)
    return ops.sub(p, _times(ops, step, lr)), square, delta


ADADELTA_UPDATE = _update(_adadelta, flops=18)


def _adam_step(
    ops: Ops[R], p: R, g: R, m: R, v: R, lr: R, c1: R, c2: R, beta1: float, beta2: float, eps: float
) -> tuple[R, ...]:
    """With r = √c2, (lr/c1)·m/(√v/r + eps) is (lr·r/c1)·m/(√v + eps·r), which costs one division per element."""
    m = _average(ops, m, g, beta1)
    v = _average(ops, v, ops.mul(g, g), beta2)
    root = ops.sqrt(c2)
    rate = ops.div(ops.mul(lr, root), c1)
    step = ops.div(m, _plus(ops, ops.sqrt(v), ops.scale(root, c=eps)))
    return ops.sub(p, _times(ops, step, rate)), m, v


def _adam(
    ops: Ops[R],
    p: R,
    g: R,
    m: R,
    v: R,
    lr: R,
    c1: R,
    c2: R,
    /,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[R, ...]:
    return _adam_step(ops, p, _decayed(ops, p, g, weight_decay), m, v, lr, c1, c2, beta1, beta2, eps)


ADAM_UPDATE = _update(_adam, flops=14)


def _adamw(
    ops: Ops[R],
    p: R,
    g: R,
    m: R,
    v: R,
    lr: R,
    c1: R,
    c2: R,
    /,
    *,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> tuple[R, ...]:
    return _adam_step(ops, _shrunk(ops, p, lr, weight_decay), g, m, v, lr, c1, c2, beta1, beta2, eps)


ADAMW_UPDATE = _update(_adamw, flops=13)

# Muon ----------------------------------------------------------------------------------------------------------------


def _require_matrix(p: TensorType) -> None:
    if len(p.shape) != 2:
        raise ShapeError(
            f"p must be a matrix but is {show_shape(p.shape)}: Muon orthogonalises matrices; update tensors of other "
            "ranks with adamw_update"
        )
    for d in p.shape:
        require_at_most(1, d, f"p is {show_shape(p.shape)}, a matrix without entries")


def _require_iterations(*, steps: int, **static: Any) -> None:
    if type(steps) is not int or steps < 0:
        raise ShapeError(f"steps must be an int that is at least 0 but is {brief(steps)}")


def _is_tall(p: TensorType) -> bool:
    """Return whether to work on pᵀ, whose x·xᵀ is smaller; for undecided sizes either way gives the same result."""
    rows, columns = p.shape
    try:
        return bool(rows > columns)
    except UndecidedDimError:
        return False


def _orthogonalize(ops: Ops[R], x: R, steps: int, eps: float) -> R:
    """Orthogonalise by Newton-Schulz iterations: the nearest semi-orthogonal matrix, with singular values in about 0.7
    … 1.2."""
    tall = _is_tall(TensorType(x.shape, x.dtype))
    if tall:
        x = ops.transpose2d(x)
    norm = ops.sqrt(ops.sum(ops.mul(x, x)))
    floor = ops.full(shape=(), value=eps, dtype=x.dtype)
    x = ops.div(x, ops.broadcast_to(ops.maximum(norm, floor), shape=x.shape))
    a, b, c = NEWTON_SCHULZ
    for _ in range(steps):
        gram = ops.matmul(x, ops.transpose2d(x))
        polynomial = ops.add(ops.scale(gram, c=b), ops.scale(ops.matmul(gram, gram), c=c))
        x = ops.add(ops.scale(x, c=a), ops.matmul(polynomial, x))
    return ops.transpose2d(x) if tall else x


def _muon(
    ops: Ops[R],
    p: R,
    g: R,
    momentum_buffer: R,
    lr: R,
    /,
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    steps: int,
    eps: float,
) -> tuple[R, ...]:
    momentum_buffer = _average(ops, momentum_buffer, g, momentum)
    direction = _average(ops, momentum_buffer, g, momentum) if nesterov else momentum_buffer
    direction = _orthogonalize(ops, direction, steps, eps)
    rows, columns = p.shape
    one = ops.full(shape=(), value=1.0, dtype=p.dtype)
    aspect = ops.full(shape=(), value=ratio(rows, columns), dtype=p.dtype)
    rate = ops.mul(lr, ops.sqrt(ops.maximum(one, aspect)))
    return ops.sub(_shrunk(ops, p, lr, weight_decay), _times(ops, direction, rate)), momentum_buffer


def _muon_flops(p: TensorType, *, steps: int, **static: Any) -> Dim:
    rows, columns = p.shape
    wide, short = (rows, columns) if _is_tall(p) else (columns, rows)
    return p.size * 15 + steps * (short * short * wide * 4 + short * short * short * 2 + short * short * 3 + p.size * 2)


MUON_UPDATE = _update(_muon, flops=0, matrix=True)
