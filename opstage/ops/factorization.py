# mypy: disable-error-code=empty-body
"""Eigenvalue, QR and singular value decompositions of the last two axes, for each matrix of a stack.

Signs are fixed, so that factors are the same on every device. A matrix with nan or inf gives nan, without affecting
others. Derivatives divide by differences of eigenvalues or singular values: where two are equal they are nan or inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from .dims import Dim, Verdict, equal, minimum
from .errors import ShapeError
from .linalg import on_diagonal, require_square, symmetric, triangle
from .matmul import transposed
from .method import Calls
from .primitive import Context, Primitive, R, Row, Some, Types
from .rule_helpers import add_all, full_like, zeros_like
from .types import TensorType, require_float, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


@final
class _Factors(Primitive):
    """A factorization whose vjp omits the terms of unused factors, which would be nan for equal values."""

    __slots__ = ()
    zero_cotangents = False


def _cubic_flops(inputs: Types, outputs: Types, /) -> Dim:
    """Estimate the flops: proportional to rows times columns times the smaller of them, depending on the method."""
    return 4 * outputs[0].size * inputs[0].shape[-1]


def _least_size(x: TensorType) -> Dim:
    """Return min(m, n) of x (..., m, n), with numbers or symbolic sizes."""
    require_float(x, "x")
    if len(x.shape) < 2:
        raise ShapeError(f"x must be (..., m, n) but is {show_shape(x.shape)}")
    return minimum(*x.shape[-2:])


def _is(size: Dim, other: Dim) -> bool:
    """Return whether two sizes are provably equal; if undecided, the general formula is correct too."""
    return equal(size, other) is Verdict.proved


def _across(ops: Ops[R], v: R) -> R:
    """Expand v (..., k) to matrices whose entry i, j is v[j]."""
    return ops.broadcast_to(ops.unsqueeze(v, axis=len(v.shape) - 1), shape=(*v.shape, v.shape[-1]))


def _down(ops: Ops[R], v: R) -> R:
    """Expand v (..., k) to matrices whose entry i, j is v[i]."""
    return ops.broadcast_to(ops.unsqueeze(v, axis=len(v.shape)), shape=(*v.shape, v.shape[-1]))


def _diagonal(ops: Ops[R], x: R) -> R:
    return ops.reduce_sum(ops.select(on_diagonal(ops, x), x, zeros_like(ops, x)), axis=-1)


def _on_diagonal(ops: Ops[R], v: R) -> R:
    square = _across(ops, v)
    return ops.select(on_diagonal(ops, square), square, zeros_like(ops, square))


def _by_gaps(ops: Ops[R], x: R, v: R) -> R:
    """Return x[i, j]/(v[j] - v[i]), and 0 on the diagonal."""
    own = on_diagonal(ops, x)
    gaps = ops.sub(_across(ops, v), _down(ops, v))
    return ops.select(own, zeros_like(ops, x), ops.div(x, ops.select(own, full_like(ops, x, 1.0), gaps)))


# Eigenvectors of a symmetric matrix -----------------------------------------------------------------------------------


def _eigh_shape(x: TensorType) -> Types:
    require_square(x, "x")
    return TensorType(x.shape[:-1], x.dtype), x


def _eigh_vjp(ops: Ops[R], ctx: Context[R], cotangents: Some[R], /) -> Some[R]:
    """Return the symmetric part of V·(diag(g_λ) + F∘(Vᵀ·g_V))·Vᵀ, F[i, j] = 1/(λ[j] - λ[i]) off the diagonal."""
    (g_values, g_vectors), (values, vectors) = cotangents, ctx.saved
    rotated: R | None = None
    if g_vectors is not None:
        rotated = _by_gaps(ops, ops.bmm(transposed(ops, vectors), g_vectors), values)
    inner = add_all(ops, None if g_values is None else _on_diagonal(ops, g_values), rotated)
    if inner is None:
        return (None,)
    return (symmetric(ops, ops.bmm(ops.bmm(vectors, inner), transposed(ops, vectors))),)


def _eigh_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> Some[R]:
    """diag(P) and V·(F∘P), where P = Vᵀ·t·V, of the symmetric part of t."""
    (values, vectors), (t,) = outputs, tangents
    inner = ops.bmm(ops.bmm(transposed(ops, vectors), symmetric(ops, t)), vectors)
    return _diagonal(ops, inner), ops.bmm(vectors, _by_gaps(ops, inner, values))


EIGH = _Factors(
    outputs=("values", "vectors"),
    shape=_eigh_shape,
    vjp=_eigh_vjp,
    jvp=_eigh_jvp,
    saves=("values", "vectors"),
    flops=_cubic_flops,
)


# Orthogonal times triangular ----------------------------------------------------------------------------------------


def _qr_shape(x: TensorType) -> Types:
    k, (m, n) = _least_size(x), x.shape[-2:]
    return TensorType((*x.shape[:-2], m, k), x.dtype), TensorType((*x.shape[:-2], k, n), x.dtype)


def _parted(ops: Ops[R], x: R, k: Dim) -> tuple[R, R | None]:
    """Return the first k columns, and the others if there may be any."""
    axis, n = len(x.shape) - 1, x.shape[-1]
    if _is(k, n):
        return x, None
    return ops.slice(x, axis=axis, start=0, length=k), ops.slice(x, axis=axis, start=k, length=n - k)


def _join_parts(ops: Ops[R], first: R, rest: R | None) -> R:
    return first if rest is None else ops.concat([first, rest], axis=len(first.shape) - 1)


def _divided(ops: Ops[R], x: R, r: R, *, transpose: bool = False) -> R:
    """Return x·r⁻¹, or x·r⁻ᵀ, for an upper triangular r."""
    return transposed(ops, ops.triangular_solve(r, transposed(ops, x), lower=False, transpose=not transpose))


def _qr_vjp(ops: Ops[R], ctx: Context[R], cotangents: Some[R], /) -> Some[R]:
    """Return (g_Q + Q·Ψ(R·g_Rᵀ - g_Qᵀ·Q))·R⁻ᵀ, Ψ the lower triangle and its mirror image (Walter and Lehmann 2010).

    This is for the first k columns, x₁ = Q·R₁. The others, x₂ = Q·R₂, have Q·g_R₂, and change g_Q by x₂·g_R₂ᵀ.
    """
    (g_q, g_r), (q, r) = cotangents, ctx.saved
    k = q.shape[-1]
    r, others = _parted(ops, r, k)
    inner: R | None = None
    of_others: R | None = None
    if g_r is not None:
        g_first, g_others = _parted(ops, g_r, k)
        inner = ops.bmm(r, transposed(ops, g_first))
        if others is not None and g_others is not None:
            of_others = ops.bmm(q, g_others)
            g_q = add_all(ops, g_q, ops.bmm(ops.bmm(q, others), transposed(ops, g_others)))
    elif others is not None:
        of_others = ops.full(shape=(*q.shape[:-1], others.shape[-1]), value=0.0, dtype=q.dtype)
    if g_q is not None:
        inner = add_all(ops, inner, ops.neg(ops.bmm(transposed(ops, g_q), q)))
    if inner is None:
        return (None,)
    half = triangle(ops, inner, lower=True, halved=True)
    rotated = ops.bmm(q, ops.add(half, transposed(ops, half)))
    moved = rotated if g_q is None else ops.add(g_q, rotated)
    return (_join_parts(ops, _divided(ops, moved, r, transpose=True), of_others),)


def _qr_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> Some[R]:
    """Return Q·Ω + C - Q·X and (X - Ω)·R, where C = t·R⁻¹, X = Qᵀ·C and Ω has X's lower triangle and its negative
    above.

    This is for the first k columns; for the others the tangent of R₂ is Qᵀ·t₂ - Ω·R₂.
    """
    (q, r), (t,) = outputs, tangents
    k = q.shape[-1]
    r, others = _parted(ops, r, k)
    t, t_others = _parted(ops, t, k)
    divided = _divided(ops, t, r)
    inner = ops.bmm(transposed(ops, q), divided)
    half = triangle(ops, inner, lower=True, halved=True)
    turn = ops.sub(half, transposed(ops, half))
    t_q = ops.bmm(q, turn)
    if not _is(k, q.shape[-2]):
        t_q = ops.add(t_q, ops.sub(divided, ops.bmm(q, inner)))
    t_rest = None
    if others is not None and t_others is not None:
        t_rest = ops.sub(ops.bmm(transposed(ops, q), t_others), ops.bmm(turn, others))
    return t_q, _join_parts(ops, ops.bmm(ops.sub(inner, turn), r), t_rest)


QR = _Factors(outputs=("q", "r"), shape=_qr_shape, vjp=_qr_vjp, jvp=_qr_jvp, saves=("q", "r"), flops=_cubic_flops)


# Singular vectors ---------------------------------------------------------------------------------------------------


def _svd_shape(x: TensorType) -> Types:
    k, (*leading, m, n) = _least_size(x), x.shape
    return tuple(TensorType((*leading, *shape), x.dtype) for shape in ((m, k), (k,), (k, n)))


def _by_gaps_of_squares(ops: Ops[R], x: R, s: R) -> R:
    """Return x[i, j]/(s[j]² - s[i]²), and 0 on the diagonal; factored, since differences of squares of close numbers
    cancel."""
    own, across, down = on_diagonal(ops, x), _across(ops, s), _down(ops, s)
    gaps = ops.mul(ops.sub(across, down), ops.add(across, down))
    return ops.select(own, zeros_like(ops, x), ops.div(x, ops.select(own, full_like(ops, x, 1.0), gaps)))


def _skew(ops: Ops[R], x: R) -> R:
    return ops.sub(x, transposed(ops, x))


def _over_rows(ops: Ops[R], x: R, s: R) -> R:
    """Return S⁻¹·x."""
    return ops.div(x, ops.broadcast_to(ops.unsqueeze(s, axis=len(s.shape)), shape=x.shape))


def _over_columns(ops: Ops[R], x: R, s: R) -> R:
    """Return x·S⁻¹."""
    return ops.div(x, ops.broadcast_to(ops.unsqueeze(s, axis=len(s.shape) - 1), shape=x.shape))


def _svd_vjp(ops: Ops[R], ctx: Context[R], cotangents: Some[R], /) -> Some[R]:
    """Return U·(diag(g_S) + (F∘skew(Uᵀ·g_U))·S + S·(F∘skew(Vᵀ·g_V)))·Vᵀ (Townsend 2016), F[i, j] = 1/(s[j]² - s[i]²).

    If U is not square, (g_U - U·Uᵀ·g_U)·S⁻¹·Vᵀ is added, and U·S⁻¹·(g_V - V·Vᵀ·g_V)ᵀ if V is not.
    """
    (g_u, g_s, g_vh), (u, s, vh) = cotangents, ctx.saved
    k, v = s.shape[-1], transposed(ops, vh)
    inner = None if g_s is None else _on_diagonal(ops, g_s)
    outside: R | None = None
    if g_u is not None:
        along = ops.bmm(transposed(ops, u), g_u)
        rotated = _by_gaps_of_squares(ops, _skew(ops, along), s)
        inner = add_all(ops, inner, ops.mul(rotated, _across(ops, s)))
        if not _is(u.shape[-2], k):
            rest = _over_columns(ops, ops.sub(g_u, ops.bmm(u, along)), s)
            outside = ops.bmm(rest, vh)
    if g_vh is not None:
        along = ops.bmm(g_vh, v)
        rotated = _by_gaps_of_squares(ops, _skew(ops, transposed(ops, along)), s)
        inner = add_all(ops, inner, ops.mul(_down(ops, s), rotated))
        if not _is(vh.shape[-1], k):
            rest = _over_rows(ops, ops.sub(g_vh, ops.bmm(along, vh)), s)
            outside = add_all(ops, outside, ops.bmm(u, rest))
    if inner is None:
        return (None,)
    return (add_all(ops, ops.bmm(ops.bmm(u, inner), vh), outside),)


def _svd_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> Some[R]:
    """Return U·(F∘(P·S + S·Pᵀ)), diag(P) and V·(F∘(S·P + Pᵀ·S)), where P = Uᵀ·t·V, plus the parts outside the spans of
    U and V."""
    (u, s, vh), (t,) = outputs, tangents
    k, v = s.shape[-1], transposed(ops, vh)
    left, right = ops.bmm(transposed(ops, u), t), ops.bmm(t, v)
    inner = ops.bmm(left, v)
    scaled = ops.mul(inner, _across(ops, s))
    t_u = ops.bmm(u, _by_gaps_of_squares(ops, ops.add(scaled, transposed(ops, scaled)), s))
    if not _is(u.shape[-2], k):
        t_u = ops.add(t_u, _over_columns(ops, ops.sub(right, ops.bmm(u, inner)), s))
    scaled = ops.mul(_down(ops, s), inner)
    rotated = _by_gaps_of_squares(ops, ops.add(scaled, transposed(ops, scaled)), s)
    t_vh = ops.bmm(transposed(ops, rotated), vh)
    if not _is(vh.shape[-1], k):
        t_vh = ops.add(t_vh, _over_rows(ops, ops.sub(left, ops.bmm(inner, vh)), s))
    return t_u, _diagonal(ops, inner), t_vh


SVD = _Factors(
    outputs=("u", "s", "vh"), shape=_svd_shape, vjp=_svd_vjp, jvp=_svd_jvp, saves=("u", "s", "vh"), flops=_cubic_flops
)


# The methods of Ops ------------------------------------------------------------------------------------------


class FactorizationOps(Calls[R]):
    __slots__ = ()

    @EIGH.method
    def eigh(self, x: R, /) -> tuple[R, R]:
        """Return eigenvalues and eigenvectors of a symmetric x: (..., n, n) -> λ (..., n), V (..., n, n), x·V =
        V·diag(λ).

        Values ascend; the columns of V are orthonormal, and the first entry of each that is at least 0.618 times its
        largest in magnitude is positive. The lower triangle of x is read; its gradient is symmetric. nan where the
        triangle has nan or inf. Where eigenvalues are equal, the derivatives of V are nan or inf; those of λ alone
        are correct. PyTorch: torch.linalg.eigh. Source of its derivatives: Giles 2008.

        Raises:
            DtypeError: x not a float tensor; x a mask.
            ShapeError: shapes differ; no such axis; x of another shape.
        """

    @QR.method
    def qr(self, x: R, /) -> tuple[R, R]:
        """Factor x = Q·R, k = min(m, n): (..., m, n) -> Q (..., m, k), orthonormal columns, R (..., k, n) upper
        triangular.

        The diagonal of R is nonnegative, so that Q and R are the same on every device. nan where x has nan
        or inf. Where the first k columns of x are dependent, so that the diagonal has a 0, the derivatives are nan or
        inf. PyTorch: torch.linalg.qr. Source of its derivatives: Walter and Lehmann 2010.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """

    @SVD.method
    def svd(self, x: R, /) -> tuple[R, R, R]:
        """Factor x = U·diag(S)·Vᵀ, k = min(m, n): (..., m, n) -> U (..., m, k), S (..., k), Vᵀ (..., k, n).

        Singular values descend; the columns of U and V are orthonormal, and the first entry of each column of U that is
        at least 0.618 times its largest in magnitude is positive; the vectors of a zero singular value have any
        sign. nan where x has nan or inf. Where singular values are equal, or one is 0 and x is not square, the
        derivatives of U and V are nan or inf; those of S alone are finite. Source of its derivatives: Townsend 2016.
        PyTorch: torch.linalg.svd(x, full_matrices=False).

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """
