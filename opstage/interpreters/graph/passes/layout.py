"""Layout: products read their operands transposed, so that nobody has to transpose them first."""

from __future__ import annotations

from ....ops.catalogue.elementwise import ADD
from ....ops.catalogue.layout import (
    BROADCAST_TO,
    PERMUTE,
    RESHAPE,
    SWAP_ADJACENT_AT_DEPTH,
    TRANSPOSE2D,
    TRANSPOSE3D_LAST_TWO,
)
from ....ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ....ops.closed import Body, Equation
from ....ops.dims import prod
from ..primitives import PRODUCT
from .rewrite import Rewrite


def fold_transposes(body: Body) -> Body:
    """The body with `product` for each matmul and bmm of an operand whose last two axes were exchanged before.

    `linear(weight, bias, x)` becomes a product with its weight transposed, to which the bias is added. Transposes that
    nobody reads any more are left to `dead_code`.
    """
    rewrite = Rewrite(body)
    turned: dict[int, int] = {}  # a tensor -> the one whose last two axes were exchanged to make it
    for equation in body.equations:
        primitive, static, _, outputs = equation[:4]
        inputs = rewrite.inputs(equation)
        if primitive is LINEAR:
            rewrite.replace(outputs, (_linear(rewrite, turned, equation, inputs),))
            continue
        if primitive in _PRODUCTS and not turned.keys().isdisjoint(inputs):
            transposed = static.get("transpose_x", False), static.get("transpose_y", False)
            rewrite.replace(outputs, (_product(rewrite, turned, inputs, transposed, equation),))
            continue
        if primitive in _TURNS and _exchanges_last_two(equation, len(rewrite.types[outputs[0]].shape)):
            turned[outputs[0]] = inputs[0]
        rewrite.keep(equation, inputs)
    return rewrite.close()


_PRODUCTS = frozenset((MATMUL, BMM, PRODUCT))
_TURNS = frozenset((PERMUTE, TRANSPOSE2D, TRANSPOSE3D_LAST_TWO, SWAP_ADJACENT_AT_DEPTH))


def _exchanges_last_two(equation: Equation, rank: int) -> bool:
    primitive, static = equation.primitive, equation.static
    if primitive is PERMUTE:
        return rank > 1 and static["axes"] == (*range(rank - 2), rank - 1, rank - 2)
    return primitive is not SWAP_ADJACENT_AT_DEPTH or static["depth"] == rank - 2


def _product(
    rewrite: Rewrite,
    turned: dict[int, int],
    operands: tuple[int, ...],
    transposed: tuple[bool, ...],
    place: Equation,
) -> int:
    """A product that reads what its operands were before they were turned."""
    flags = [flag is not (slot in turned) for slot, flag in zip(operands, transposed)]
    static = dict(zip(("transpose_x", "transpose_y"), flags))
    return rewrite.bind(PRODUCT, tuple([turned.get(slot, slot) for slot in operands]), static, place=place)[0]


def _linear(rewrite: Rewrite, turned: dict[int, int], equation: Equation, inputs: tuple[int, ...]) -> int:
    """x · weightᵀ + bias for x of any rank."""
    weight, *bias, x = inputs
    shape = rewrite.types[x].shape
    out = rewrite.types[equation.outputs[0]].shape
    if len(shape) == 2:
        result = _product(rewrite, turned, (x, weight), (False, True), equation)
    else:
        (rows,) = rewrite.bind(RESHAPE, (x,), {"shape": (prod(shape[:-1]), shape[-1])}, place=equation)
        product = _product(rewrite, turned, (rows, weight), (False, True), equation)
        (result,) = rewrite.bind(RESHAPE, (product,), {"shape": out}, place=equation)
    for b in bias:
        (spread,) = rewrite.bind(BROADCAST_TO, (b,), {"shape": out}, place=equation)
        (result,) = rewrite.bind(ADD, (result, spread), place=equation)
    return result
