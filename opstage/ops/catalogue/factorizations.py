"""Factors of the last two axes that are orthogonal, for each matrix of a stack.

Signs are fixed, so that a factor is one and the same on every device. A matrix that holds nan or inf gives nan, its own
alone. Derivatives divide by the differences of eigenvalues or singular values: where two are equal they are nan or inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from ..dims import Dim
from ..primitive import Context, Primitive, R
from ..rules import add_all, ones_like, zeros_like
from ..types import TensorType
from .linalg import transposed
from .solving import on_diagonal, require_square, symmetric

if TYPE_CHECKING:
    from ..protocol import Ops


@final
class _Factors(Primitive):
    """One whose vjp leaves out the terms of a factor that nothing was computed from: by equal values they are nan."""

    __slots__ = ()
    zero_cotangents = False


def _cubic_flops(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /) -> Dim:
    """A multiple, which depends on the method, of the rows times the columns times the lesser of them."""
    return 4 * outputs[0].size * inputs[0].shape[-1]


def _across(ops: Ops[R], v: R) -> R:
    """Of v (..., k) the squares whose entry i, j is v[j]."""
    return ops.broadcast_to(ops.unsqueeze(v, axis=len(v.shape) - 1), shape=(*v.shape, v.shape[-1]))


def _down(ops: Ops[R], v: R) -> R:
    """Of v (..., k) the squares whose entry i, j is v[i]."""
    return ops.broadcast_to(ops.unsqueeze(v, axis=len(v.shape)), shape=(*v.shape, v.shape[-1]))


def _diagonal(ops: Ops[R], x: R) -> R:
    return ops.reduce_sum(ops.select(on_diagonal(ops, x), x, zeros_like(ops, x)), axis=-1)


def _on_diagonal(ops: Ops[R], v: R) -> R:
    square = _across(ops, v)
    return ops.select(on_diagonal(ops, square), square, zeros_like(ops, square))


def _by_gaps(ops: Ops[R], x: R, v: R) -> R:
    """x[i, j]/(v[j] - v[i]), and 0 on the diagonal."""
    own = on_diagonal(ops, x)
    gaps = ops.sub(_across(ops, v), _down(ops, v))
    return ops.select(own, zeros_like(ops, x), ops.div(x, ops.select(own, ones_like(ops, x), gaps)))


# Eigenvectors of a symmetric matrix -----------------------------------------------------------------------------------


def _eigh_shape(x: TensorType) -> tuple[TensorType, ...]:
    require_square(x, "x")
    return TensorType(x.shape[:-1], x.dtype), x


def _eigh_vjp(ops: Ops[R], ctx: Context[R], cotangents: tuple[R | None, ...], /) -> tuple[R | None, ...]:
    """The symmetric part of V·(diag(g_λ) + F∘(Vᵀ·g_V))·Vᵀ, F[i, j] = 1/(λ[j] - λ[i]) off the diagonal."""
    (g_values, g_vectors), (values, vectors) = cotangents, ctx.saved
    turned: R | None = None
    if g_vectors is not None:
        turned = _by_gaps(ops, ops.bmm(transposed(ops, vectors), g_vectors), values)
    inner = add_all(ops, None if g_values is None else _on_diagonal(ops, g_values), turned)
    if inner is None:
        return (None,)
    return (symmetric(ops, ops.bmm(ops.bmm(vectors, inner), transposed(ops, vectors))),)


def _eigh_jvp(
    ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R, ...], /
) -> tuple[R | None, ...]:
    """diag(P) and V·(F∘P), where P = Vᵀ·t·V, of the symmetric part of t."""
    (values, vectors), (t,) = outputs, tangents
    inner = ops.bmm(ops.bmm(transposed(ops, vectors), symmetric(ops, t)), vectors)
    return _diagonal(ops, inner), ops.bmm(vectors, _by_gaps(ops, inner, values))


EIGH = _Factors(
    "eigh",
    operands=("x",),
    outputs=("values", "vectors"),
    shape=_eigh_shape,
    vjp=_eigh_vjp,
    jvp=_eigh_jvp,
    saves=("values", "vectors"),
    flops=_cubic_flops,
)
