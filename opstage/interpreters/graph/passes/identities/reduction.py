"""Identities of reductions: a reduction over axes of size 1 is a reshape."""

from __future__ import annotations

from .....ops.catalogue.layout import RESHAPE
from .....ops.catalogue.reduction import REDUCE_MAX, REDUCE_MEAN, REDUCE_SUM, SUM
from .....ops.primitive import Primitive, Static
from .....ops.types import TensorType
from .surroundings import Inputs, Rule, Surroundings, is_one


def _of_one_element(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    before = around.type(inputs[0])
    if before.dtype != out.dtype or not all(is_one(before.shape[axis]) for axis in static["axes"]):
        return None
    return around.bind(RESHAPE, *inputs, shape=out.shape)


def _sum(around: Surroundings, inputs: Inputs, static: Static, out: TensorType) -> int | None:
    axes = tuple(range(len(around.shape(inputs[0]))))
    return around.bind(REDUCE_SUM, *inputs, axes=axes, keepdims=False)


RULES: dict[Primitive, tuple[Rule, ...]] = {
    SUM: (_sum,),
    REDUCE_SUM: (_of_one_element,),
    REDUCE_MEAN: (_of_one_element,),
    REDUCE_MAX: (_of_one_element,),
}
