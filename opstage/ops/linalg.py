"""Linear systems, Cholesky factors, determinants and inverses of each matrix of a stack; Einstein summation.

A matrix without a solution gives nan on every device, without affecting other matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from .dims import Dim, prod, require_equal
from .errors import LocatedError, ShapeError, brief
from .matmul import transposed
from .method import Calls
from .primitive import Context, Primitive, R, Row, Some, Types
from .rule_helpers import add_all, alike, placed, type_of, zeros_like
from .types import Shape, TensorType, require_float, require_same_dtype, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# mypy: disable-error-code=empty-body


# Linear systems and Cholesky factors of the last two axes, for each matrix of a stack ---------------------------------

_HALF = Fraction(1, 2)


def require_square(x: TensorType, name: str) -> None:
    require_float(x, name)
    if len(x.shape) < 2:
        raise ShapeError(f"{name} must be (..., n, n) but is {show_shape(x.shape)}")
    require_equal(
        x.shape[-2],
        x.shape[-1],
        lambda: (
            f"{name} must be (..., n, n) but is {show_shape(x.shape)}: it has {x.shape[-2]} rows and "
            f"{x.shape[-1]} columns"
        ),
    )


def _system_shape(a: TensorType, b: TensorType, **_: Any) -> Types:
    """Return the type of a (..., n, n) and b (..., n, k) with the same leading axes -> (..., n, k)."""
    require_square(a, "a")
    require_same_dtype(a, b, "a", "b")

    def message() -> str:
        return (
            f"a is {show_shape(a.shape)} but b is {show_shape(b.shape)}: for a (..., n, n) it must be (..., n, k) with "
            "the same leading axes; a vector is a column, ops.unsqueeze(b, axis=-1)"
        )

    if len(a.shape) != len(b.shape):
        raise ShapeError(message())
    for size, other in zip(a.shape[:-1], b.shape[:-1]):
        require_equal(size, other, message)
    return (b,)


def square_flops(inputs: Types, outputs: Types, /, **_: Any) -> Dim:
    return outputs[0].size * inputs[0].shape[-1]


def _solve_flops(inputs: Types, outputs: Types, /) -> Dim:
    return inputs[0].size * inputs[0].shape[-1] + 2 * square_flops(inputs, outputs)


# General systems ----------------------------------------------------------------------------------------------------


def _solve_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (a, out) = cotangents, ctx.saved
    of_b = ops.solve(transposed(ops, a), g)
    return ops.neg(ops.bmm(of_b, transposed(ops, out))) if ctx.needs[0] else None, of_b


def _solve_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /) -> tuple[R | None]:
    (a, _), (out,), (t_a, t_b) = primals, outputs, tangents
    moved = add_all(ops, ops.neg(ops.bmm(t_a, out)) if t_a is not None else None, t_b)
    return (None if moved is None else ops.solve(a, moved),)


SOLVE = Primitive(
    shape=_system_shape, vjp=_solve_vjp, jvp=_solve_jvp, saves={"a": ("a", "b"), "out": ("a",)}, flops=_solve_flops
)

# Triangular systems -------------------------------------------------------------------------------------------------


def on_diagonal(ops: Ops[R], x: R) -> R:
    """Return the mask of a matrix's diagonal."""
    rank = len(x.shape)
    return ops.equal(ops.iota(shape=x.shape, axis=rank - 2), ops.iota(shape=x.shape, axis=rank - 1))


def triangle(ops: Ops[R], x: R, *, lower: bool, halved: bool = False) -> R:
    """Return x with zeros outside of a triangle and, if `halved`, with half of its diagonal."""
    rank = len(x.shape)
    rows, columns = ops.iota(shape=x.shape, axis=rank - 2), ops.iota(shape=x.shape, axis=rank - 1)
    outside = ops.less(rows, columns) if lower else ops.less(columns, rows)
    x = ops.select(outside, zeros_like(ops, x), x)
    return ops.select(ops.equal(rows, columns), ops.scale(x, c=_HALF), x) if halved else x


def _triangular_solve_vjp(
    ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, lower: bool, transpose: bool
) -> Some[R]:
    (g,), (a, out) = cotangents, ctx.saved
    of_b = ops.triangular_solve(a, g, lower=lower, transpose=not transpose)
    of_a: R | None = None
    if ctx.needs[0]:
        left, right = (out, of_b) if transpose else (of_b, out)
        of_a = ops.neg(triangle(ops, ops.bmm(left, transposed(ops, right)), lower=lower))
    return of_a, of_b


def _triangular_solve_jvp(
    ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Some[R], /, *, lower: bool, transpose: bool
) -> tuple[R | None]:
    (a, _), (out,), (t_a, t_b) = primals, outputs, tangents
    moved: R | None = None
    if t_a is not None:
        matrix = triangle(ops, t_a, lower=lower)
        moved = ops.neg(ops.bmm(transposed(ops, matrix) if transpose else matrix, out))
    total = add_all(ops, moved, t_b)
    return (None if total is None else ops.triangular_solve(a, total, lower=lower, transpose=transpose),)


TRIANGULAR_SOLVE = Primitive(
    shape=_system_shape,
    vjp=_triangular_solve_vjp,
    jvp=_triangular_solve_jvp,
    saves={"a": ("a", "b"), "out": ("a",)},
    flops=square_flops,
)

# The Cholesky factor ------------------------------------------------------------------------------------------------


def symmetric(ops: Ops[R], x: R) -> R:
    """Return (x + xᵀ)/2."""
    return ops.scale(ops.add(x, transposed(ops, x)), c=_HALF)


def _cholesky_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    """Return the symmetric part of L⁻ᵀ·Φ(Lᵀ·g)·L⁻¹, Φ a lower triangle with half of its diagonal (Murray 2016)."""
    (g,), (out,) = cotangents, ctx.saved
    inner = triangle(ops, ops.bmm(transposed(ops, out), g), lower=True, halved=True)
    left = ops.triangular_solve(out, inner, transpose=True)
    return (symmetric(ops, ops.triangular_solve(out, transposed(ops, left), transpose=True)),)


def _cholesky_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> tuple[R | None]:
    """Return L·Φ(L⁻¹·t·L⁻ᵀ), for the symmetric part of t."""
    (out,), (t,) = outputs, tangents
    left = ops.triangular_solve(out, symmetric(ops, t))
    inner = ops.triangular_solve(out, transposed(ops, left))
    return (ops.bmm(out, triangle(ops, inner, lower=True, halved=True)),)


CHOLESKY = Primitive(
    shape=alike(require_square, "x"), vjp=_cholesky_vjp, jvp=_cholesky_jvp, saves=("out",), flops=square_flops
)


# Determinants of the last two axes, for each matrix of a stack, and the cofactors, which are their derivatives --------


def _of_matrix(x: TensorType) -> Types:
    require_square(x, "x")
    return (x,)


def _number_each(x: TensorType) -> Types:
    require_square(x, "x")
    return (TensorType(x.shape[:-2], x.dtype),)


def _two_each(x: TensorType) -> Types:
    return _number_each(x) * 2


def _cubic_flops(inputs: Types, outputs: Types, /) -> Dim:
    return inputs[0].size * inputs[0].shape[-1]


def over_matrices(ops: Ops[R], number: R, x: R) -> R:
    """Broadcast one number per matrix to its entries."""
    return ops.broadcast_to(ops.reshape(number, shape=(*number.shape, 1, 1)), shape=x.shape)


def inner(ops: Ops[R], x: R, y: R) -> R:
    """Return the inner product of two matrices, for each of a stack."""
    return ops.reduce_sum(ops.mul(x, y), axis=(-2, -1))


def invert(ops: Ops[R], x: R) -> R:
    """Return x⁻¹, by solving with the identity matrix."""
    return ops.solve(x, ops.cast(on_diagonal(ops, x), dtype=x.dtype))


# The determinant ----------------------------------------------------------------------------------------------------


def _det_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (g,), (x,) = cotangents, ctx.saved
    return (ops.mul(over_matrices(ops, g, x), ops.cofactor(x)),)


def _det_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> tuple[R | None]:
    (x,), (t,) = primals, tangents
    return (inner(ops, ops.cofactor(x), t),)


DET = Primitive(shape=_number_each, vjp=_det_vjp, jvp=_det_jvp, saves=("x",), flops=_cubic_flops)

# Cofactors: C = det(x)·x⁻ᵀ, so dC = <x⁻ᵀ, dx>·C - x⁻ᵀ·dxᵀ·C --------------------------------------------------------


def _cofactor_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    """<g, C>·x⁻ᵀ - C·gᵀ·x⁻ᵀ."""
    (g,), (x, out) = cotangents, ctx.saved
    inverse = transposed(ops, invert(ops, x))
    whole = ops.mul(over_matrices(ops, inner(ops, g, out), x), inverse)
    return (ops.sub(whole, ops.bmm(ops.bmm(out, transposed(ops, g)), inverse)),)


def _cofactor_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> tuple[R | None]:
    (x,), (out,), (t,) = primals, outputs, tangents
    inverse = transposed(ops, invert(ops, x))
    whole = ops.mul(over_matrices(ops, inner(ops, inverse, t), x), out)
    return (ops.sub(whole, ops.bmm(ops.bmm(inverse, transposed(ops, t)), out)),)


COFACTOR = Primitive(shape=_of_matrix, vjp=_cofactor_vjp, jvp=_cofactor_jvp, saves=("x", "out"), flops=_cubic_flops)

# Sign and logarithm of the determinant ------------------------------------------------------------------------------


def _slogdet_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /) -> Some[R]:
    (_, g), (x,) = cotangents, ctx.saved
    return (ops.mul(over_matrices(ops, g, x), transposed(ops, invert(ops, x))),)


def _slogdet_jvp(ops: Ops[R], primals: Row[R], outputs: Row[R], tangents: Row[R], /) -> Some[R]:
    (x,), (t,) = primals, tangents
    return None, inner(ops, transposed(ops, invert(ops, x)), t)


SLOGDET = Primitive(
    outputs=("sign", "logabsdet"), shape=_two_each, vjp=_slogdet_vjp, jvp=_slogdet_jvp, saves=("x",), flops=_cubic_flops
)


# The methods of Ops ------------------------------------------------------------------------------------------


class LinalgOps(Calls[R]):
    __slots__ = ()

    @SOLVE.method
    def solve(self, a: R, b: R, /) -> R:
        """Return a⁻¹·b: a (..., n, n), b (..., n, k) with the same leading axes. PyTorch: torch.linalg.solve.

        Where a is singular (a pivot is exactly 0), or has nan or inf, the result is nan. Uses elimination with row
        exchanges.

        Raises:
            DtypeError: a not a float tensor; dtypes differ.
            ShapeError: b does not fit a; a of another shape.
        """

    @TRIANGULAR_SOLVE.method
    def triangular_solve(self, a: R, b: R, /, *, lower: bool = True, transpose: bool = False) -> R:
        """Return a⁻¹·b, or a⁻ᵀ·b, for a triangular a. PyTorch: torch.linalg.solve_triangular.

        a (..., n, n), of which only the lower or upper triangle is read; b (..., n, k) with the same leading axes.
        Where the diagonal has a 0 the result has inf and nan.

        Raises:
            DtypeError: a not a float tensor; dtypes differ.
            ShapeError: b does not fit a; an invalid argument; a of another shape.
        """

    @CHOLESKY.method
    def cholesky(self, x: R, /) -> R:
        """Return the lower triangular L with L·Lᵀ = x, for a symmetric positive definite x. PyTorch:
        torch.linalg.cholesky.

        x (..., n, n), of which only the lower triangle is read; its gradient is symmetric. Where x is not positive
        definite, or the triangle has nan or inf, L is nan. Source of its derivatives: Murray 2016.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: shapes differ; no such axis; x of another shape.
        """

    @DET.method
    def det(self, x: R, /) -> R:
        """Return the determinant: x (..., n, n) -> (...); 1 for n = 0. PyTorch: torch.linalg.det. ONNX: Det.

        Its gradient is `cofactor(x)`, also for singular x; the second derivative requires invertible x, and is nan
        where x is singular. nan where x has nan or inf.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """

    @COFACTOR.method
    def cofactor(self, x: R, /) -> R:
        """Return the cofactor matrix, the transpose of the adjugate: x (..., n, n) -> (..., n, n), det(x)·x⁻ᵀ.

        Also for singular x: 0 where its rank is less than n - 1. Its derivatives require invertible x, and are nan
        where x is singular. nan where x has nan or inf. Not in PyTorch.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """

    @SLOGDET.method
    def slogdet(self, x: R, /) -> tuple[R, R]:
        """Return the sign of the determinant and the logarithm of its absolute value: x (..., n, n) -> (...), (...).

        They do not overflow where the determinant would. 0 and -inf where x is singular (a pivot is exactly 0), and nan
        where it has nan or inf. The gradient of the logarithm is x⁻ᵀ, nan where x is singular; the sign has none.
        PyTorch: torch.linalg.slogdet.

        Raises:
            DtypeError: x not a float tensor.
            ShapeError: x of another shape.
        """


# Functions ------------------------------------------------------------------------------------------------------------


def inverse(ops: Ops[R], x: R, /) -> R:
    """Return the inverse matrix x⁻¹: x (..., n, n) -> (..., n, n). PyTorch: torch.linalg.inv. NumPy: np.linalg.inv.

    Where x is singular (a pivot is exactly 0), or has nan or inf, it is nan. To apply it, `ops.solve(x, b)` is
    faster and more accurate. `ops.inv` is the elementwise 1/x. Raises ShapeError unless x is square.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: x of another shape.
    """
    placed(ops, "inverse", lambda: require_square(type_of(x), "x"))
    return invert(ops, x)


# Einstein summation, through permutations, reshapes, products and sums ------------------------------------------------


def einsum(ops: Ops[R], equation: str, /, *operands: R) -> R:
    """Return the sum of products in `equation`, such as `"bij,bjk->bik"`; PyTorch: torch.einsum.

    Each letter names an axis. Letters that are missing on the right side are summed; a letter that occurs twice in an
    operand selects its diagonal. Without `->`, the result has the letters that occur once, in alphabetical order.
    Operands are contracted from left to right. Raises ShapeError if the equation does not fit the operands.

    Raises:
        DtypeError: x not a float tensor; dtypes differ.
        ShapeError: an invalid argument; operands that do not fit each other.
    """
    try:
        terms, output = _parse(equation, len(operands))
        sizes = _sizes(equation, terms, [x.shape for x in operands])
    except LocatedError as error:
        error.place("einsum", ops.cursor.region.name)
        raise
    letters, x = _diagonal(ops, terms[0], operands[0])
    for i in range(1, len(operands)):
        other, y = _diagonal(ops, terms[i], operands[i])
        kept = {*output, *"".join(terms[i + 1 :])}
        letters, x = _sum_axes(ops, letters, x, kept.union(other))
        other, y = _sum_axes(ops, other, y, kept.union(letters))
        letters, x = _contract(ops, letters, x, other, y, kept, sizes)
    letters, x = _sum_axes(ops, letters, x, set(output))
    return _permuted(ops, letters, x, output)


def _parse(equation: str, count: int) -> tuple[list[str], str]:
    """Return the letters of each operand, and those of the result."""
    if not isinstance(equation, str):
        raise ShapeError(f"the equation must be a text such as 'ij,jk->ik' but is {brief(equation)}")
    text = equation.replace(" ", "")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if "." in text:
        raise ShapeError(f"{equation!r} has an ellipsis, which is not supported; name each axis by a letter")
    for part in (*terms, output):
        wrong = [c for c in part if not (c.isascii() and c.isalpha())]
        if wrong:
            raise ShapeError(f"{equation!r} has {wrong[0]!r} where a letter should name an axis")
    if len(terms) != count:
        raise ShapeError(f"{equation!r} is about {len(terms)} operands but got {count}")
    if not arrow:
        output = "".join(sorted(c for c in set(left) if c != "," and left.count(c) == 1))
    for c in output:
        if output.count(c) > 1:
            raise ShapeError(f"{equation!r} has {c!r} twice in the result")
        if c not in left:
            raise ShapeError(f"{equation!r} has {c!r} in the result but in no operand")
    return terms, output


def _sizes(equation: str, terms: Sequence[str], shapes: Sequence[Shape]) -> dict[str, Dim]:
    """Return the size of each letter. Raises ShapeError if it differs between operands."""
    sizes: dict[str, Dim] = {}
    for i, (letters, shape) in enumerate(zip(terms, shapes)):
        if len(letters) != len(shape):
            raise ShapeError(
                f"{equation!r} gives operand {i} the {len(letters)} axes {letters!r} but its shape is "
                f"{show_shape(shape)}"
            )
        for c, size in zip(letters, shape):
            known = sizes.setdefault(c, size)
            require_equal(
                known,
                size,
                lambda: f"{equation!r}: {c} is {known} but operand {i}, {show_shape(shape)}, has {size} there",
            )
    return sizes


def _diagonal(ops: Ops[R], letters: str, x: R) -> tuple[str, R]:
    """Reduce repeated letters of x to their diagonal."""
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            first, second = letters.index(c), letters.rindex(c)
            same = ops.equal(ops.iota(shape=x.shape, axis=first), ops.iota(shape=x.shape, axis=second))
            x = ops.reduce_sum(ops.select(same, x, zeros_like(ops, x)), axis=second)
            letters = letters[:second] + letters[second + 1 :]
    return letters, x


def _sum_axes(ops: Ops[R], letters: str, x: R, kept: set[str]) -> tuple[str, R]:
    """Sum x over the axes whose letters are not `kept`."""
    axes = [axis for axis, c in enumerate(letters) if c not in kept]
    if not axes:
        return letters, x
    return "".join(c for c in letters if c in kept), ops.reduce_sum(x, axis=axes)


def _permuted(ops: Ops[R], letters: str, x: R, order: str) -> R:
    return x if letters == order else ops.permute(x, axes=[letters.index(c) for c in order])


def _contract(ops: Ops[R], a: str, x: R, b: str, y: R, kept: set[str], sizes: dict[str, Dim]) -> tuple[str, R]:
    """Multiply two terms, summing over the shared letters that are not `kept`."""
    batch = "".join(c for c in a if c in b and c in kept)
    summed = "".join(c for c in a if c in b and c not in kept)
    rows = "".join(c for c in a if c not in b)
    columns = "".join(c for c in b if c not in a)
    result = batch + rows + columns
    if not summed:
        left = _spread(ops, _permuted(ops, a, x, batch + rows), batch + rows, result, sizes)
        right = _spread(ops, _permuted(ops, b, y, batch + columns), batch + columns, result, sizes)
        return result, ops.mul(left, right)
    if batch:
        left = _grouped(ops, a, x, [batch, rows, summed], sizes)
        out = ops.bmm(left, _grouped(ops, b, y, [batch, summed, columns], sizes))
    else:
        left = _grouped(ops, a, x, [rows, summed], sizes)
        out = ops.matmul(left, _grouped(ops, b, y, [summed, columns], sizes))
    grouped = all(len(group) == 1 for group in (batch or "-", rows, columns))
    return result, out if grouped else ops.reshape(out, shape=_shape(result, sizes))


def _shape(letters: str, sizes: dict[str, Dim]) -> Shape:
    return tuple(sizes[c] for c in letters)


def _spread(ops: Ops[R], x: R, letters: str, result: str, sizes: dict[str, Dim]) -> R:
    """Broadcast x, with letters in the order of `result`, along the letters that it lacks."""
    if letters == result:
        return x
    x = ops.reshape(x, shape=tuple(sizes[c] if c in letters else 1 for c in result))
    return ops.broadcast_to(x, shape=_shape(result, sizes))


def _grouped(ops: Ops[R], letters: str, x: R, groups: list[str], sizes: dict[str, Dim]) -> R:
    """Reshape x to one axis for each group of letters."""
    x = _permuted(ops, letters, x, "".join(groups))
    if all(len(group) == 1 for group in groups):
        return x
    return ops.reshape(x, shape=tuple(prod(_shape(group, sizes)) for group in groups))
