"""Einstein summation, through permutations, reshapes, products and sums."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .dims import Dim, prod, require_equal
from .errors import LocatedError, ShapeError
from .primitive import R
from .rules import zeros_like
from .types import Shape, show_shape
from .untrusted import brief

if TYPE_CHECKING:
    from .protocol import Ops


def einsum(ops: Ops[R], equation: str, /, *operands: R) -> R:
    """The sum of products in `equation`, such as `"bij,bjk->bik"`; PyTorch: torch.einsum.

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
        letters, x = _sum_out(ops, letters, x, kept.union(other))
        other, y = _sum_out(ops, other, y, kept.union(letters))
        letters, x = _contract(ops, letters, x, other, y, kept, sizes)
    letters, x = _sum_out(ops, letters, x, set(output))
    return _permuted(ops, letters, x, output)


def _parse(equation: str, count: int) -> tuple[list[str], str]:
    """Return the letters of each operand, and those of the result."""
    if not isinstance(equation, str):
        raise ShapeError(f"the equation must be a text such as 'ij,jk->ik' but is {brief(equation)}")
    text = equation.replace(" ", "")
    left, arrow, output = text.partition("->")
    terms = left.split(",")
    if "." in text:
        raise ShapeError(f"{equation!r} has an ellipsis; give each axis a letter of its own")
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


def _sum_out(ops: Ops[R], letters: str, x: R, kept: set[str]) -> tuple[str, R]:
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
