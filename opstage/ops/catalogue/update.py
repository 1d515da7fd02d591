"""Optimizer updates: one step for one parameter.

`p` is the parameter, `g` its gradient, and every state tensor has p's shape and dtype. Learning rates and bias
corrections are scalar operands, so that a schedule changes values but not the program. Each update is a composite whose
decomposition fixes the order of the float operations: a fused kernel must give the same bits. Formulas are those of
torch.optim; scalars are combined before they are applied to a tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any, final

from ..calls import Calls
from ..dims import Dim, UndecidedDimError, ratio, require_at_most
from ..errors import ShapeError
from ..primitive import Primitive, R, Row, Static, Types
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

    def shape(*operands: TensorType, **static: Any) -> Types:
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

    def total(inputs: Types, outputs: Types, /, **static: Any) -> Dim:
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


def _sgd(ops: Ops[R], p: R, g: R, lr: R, /, *, weight_decay: float) -> Row[R]:
    return (ops.sub(p, _times(ops, _decayed(ops, p, g, weight_decay), lr)),)


SGD_UPDATE = _update(_sgd, flops=4)


def _momentum(
    ops: Ops[R], p: R, g: R, velocity: R, lr: R, /, *, momentum: float, nesterov: bool, weight_decay: float
) -> Row[R]:
    g = _decayed(ops, p, g, weight_decay)
    velocity = ops.add(ops.scale(velocity, c=momentum), g)
    step = ops.add(g, ops.scale(velocity, c=momentum)) if nesterov else velocity
    return ops.sub(p, _times(ops, step, lr)), velocity


MOMENTUM_UPDATE = _update(_momentum, flops=8)

# Adaptive step sizes -------------------------------------------------------------------------------------------------


def _adagrad(ops: Ops[R], p: R, g: R, total: R, lr: R, /, *, eps: float, weight_decay: float) -> Row[R]:
    g = _decayed(ops, p, g, weight_decay)
    total = ops.add(total, ops.mul(g, g))
    step = ops.div(g, _plus_static(ops, ops.sqrt(total), eps))
    return ops.sub(p, _times(ops, step, lr)), total


ADAGRAD_UPDATE = _update(_adagrad, flops=9)


def _rmsprop(ops: Ops[R], p: R, g: R, square: R, lr: R, /, *, alpha: float, eps: float, weight_decay: float) -> Row[R]:
    g = _decayed(ops, p, g, weight_decay)
    square = _average(ops, square, ops.mul(g, g), alpha)
    step = ops.div(g, _plus_static(ops, ops.sqrt(square), eps))
    return ops.sub(p, _times(ops, step, lr)), square


RMSPROP_UPDATE = _update(_rmsprop, flops=11)


def _adadelta(
    ops: Ops[R], p: R, g: R, square: R, delta: R, lr: R, /, *, rho: float, eps: float, weight_decay: float
) -> Row[R]:
    g = _decayed(ops, p, g, weight_decay)
    square = _average(ops, square, ops.mul(g, g), rho)
    ratio_of_roots = ops.div(ops.sqrt(_plus_static(ops, delta, eps)), ops.sqrt(_plus_static(ops, square, eps)))
    step = ops.mul(ratio_of_roots, g)
    delta = _average(ops, delta, ops.mul(step, step), rho)
    return ops.sub(p, _times(ops, step, lr)), square, delta


ADADELTA_UPDATE = _update(_adadelta, flops=18)


def _adam_step(
    ops: Ops[R], p: R, g: R, m: R, v: R, lr: R, c1: R, c2: R, beta1: float, beta2: float, eps: float
) -> Row[R]:
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
) -> Row[R]:
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
) -> Row[R]:
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
) -> Row[R]:
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


# The methods of Ops ------------------------------------------------------------------------------------------


class UpdateOps(Calls[R]):
    __slots__ = ()

    @final
    def _update(self, primitive: Primitive, refs: tuple[R, ...], static: Static) -> tuple[R, ...]:
        """Bind an update; its numbers are fractions only if tensors are."""
        for number in static.values():
            if type(number) is Fraction and refs[0].dtype.kind == "f":
                static = {name: float(v) if type(v) is Fraction else v for name, v in static.items()}
        return self._call_many(primitive, refs, static)

    def sgd_update(self, p: R, g: R, lr: R, /, *, weight_decay: float = 0.0) -> R:
        """p - lr·(g + weight_decay·p). PyTorch: torch.optim.SGD.

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        return self._update(SGD_UPDATE, (p, g, lr), {"weight_decay": weight_decay})[0]

    def momentum_update(
        self, p: R, g: R, velocity: R, lr: R, /, *, momentum: float, nesterov: bool = False, weight_decay: float = 0.0
    ) -> tuple[R, R]:
        """SGD with (Nesterov) momentum: new p, velocity. PyTorch: torch.optim.SGD(momentum=, nesterov=).

        g += weight_decay·p; velocity = momentum·velocity + g; p -= lr·velocity, or with `nesterov` p -= lr·(g +
        momentum·velocity).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        static = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        new, velocity = self._update(MOMENTUM_UPDATE, (p, g, velocity, lr), static)
        return new, velocity

    def adagrad_update(self, p: R, g: R, total: R, lr: R, /, *, eps: float, weight_decay: float = 0.0) -> tuple[R, R]:
        """Adagrad: new p, sum of squares. PyTorch: torch.optim.Adagrad.

        g += weight_decay·p; total += g²; p -= lr·g/(√total + eps) (Duchi et al. 2011).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        new, total = self._update(ADAGRAD_UPDATE, (p, g, total, lr), {"eps": eps, "weight_decay": weight_decay})
        return new, total

    def rmsprop_update(
        self, p: R, g: R, square: R, lr: R, /, *, alpha: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R]:
        """RMSprop: new p, mean square. PyTorch: torch.optim.RMSprop.

        g += weight_decay·p; square = alpha·square + (1 - alpha)·g²; p -= lr·g/(√square + eps) (Tieleman & Hinton 2012).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        static = {"alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        new, square = self._update(RMSPROP_UPDATE, (p, g, square, lr), static)
        return new, square

    def adam_update(
        self,
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
        weight_decay: float = 0.0,
    ) -> tuple[R, R, R]:
        """Adam: new p, m, v; c1 = 1 - beta1^t, c2 = 1 - beta2^t. PyTorch: torch.optim.Adam.

        g += weight_decay·p; m = beta1·m + (1 - beta1)·g; v = beta2·v + (1 - beta2)·g²; p -= lr·(m/c1)/(√(v/c2) + eps)
        (Kingma & Ba 2015).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr, c1, c2 of another shape.
        """
        static = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        new, m, v = self._update(ADAM_UPDATE, (p, g, m, v, lr, c1, c2), static)
        return new, m, v

    def adamw_update(
        self,
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
    ) -> tuple[R, R, R]:
        """AdamW (decoupled decay): new p, m, v. PyTorch: torch.optim.AdamW.

        p *= 1 - lr·weight_decay, then adam_update without decay (Loshchilov & Hutter 2019).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr, c1, c2 of another shape.
        """
        static = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        new, m, v = self._update(ADAMW_UPDATE, (p, g, m, v, lr, c1, c2), static)
        return new, m, v

    def adadelta_update(
        self, p: R, g: R, square: R, delta: R, lr: R, /, *, rho: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R, R]:
        """Adadelta: new p, mean square, mean squared step. PyTorch: torch.optim.Adadelta.

        g += weight_decay·p; square = rho·square + (1 - rho)·g²; step = √(delta + eps)/√(square + eps)·g; delta =
        rho·delta + (1 - rho)·step²; p -= lr·step (Zeiler 2012).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        static = {"rho": rho, "eps": eps, "weight_decay": weight_decay}
        new, square, delta = self._update(ADADELTA_UPDATE, (p, g, square, delta, lr), static)
        return new, square, delta

    def muon_update(
        self,
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
    ) -> tuple[R, R]:
        """Muon: new p, momentum buffer; Newton-Schulz orthogonalised step. PyTorch: torch.optim.Muon.

        For a matrix p (r, c): b = momentum·b + (1 - momentum)·g; u = momentum·b + (1 - momentum)·g with `nesterov`,
        else b; u orthogonalised by `steps` Newton-Schulz iterations from u/max(‖u‖, eps); p = (1 - lr·weight_decay)·p -
        lr·√max(1, r/c)·u (Jordan et al. 2024). PyTorch iterates in bfloat16, this op in p's dtype.

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: p has no entries; shapes differ; an invalid argument; p, lr of another shape.
        """
        static = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay, "steps": steps, "eps": eps}
        new, momentum_buffer = self._update(MUON_UPDATE, (p, g, momentum_buffer, lr), static)
        return new, momentum_buffer
