"""Memory: random tensors."""

from __future__ import annotations

from ....ops.catalogue.random import BERNOULLI_MASK, RAND_UNIFORM
from ....ops.primitive import Primitive
from .allocation import Allocation, Call, Rule, fresh
from .strides import elements

_CHUNK = 16384  # words that are mixed at a time, in buffers of their own


def _rand_uniform(call: Call) -> Allocation:
    return fresh(call, 3 * 8 * min(_CHUNK, elements(call.outputs[0].shape)))


ALLOCATIONS: dict[Primitive, Rule] = {RAND_UNIFORM: _rand_uniform}

FAST_ALLOCATIONS: dict[Primitive, Rule] = {RAND_UNIFORM: fresh, BERNOULLI_MASK: fresh}
