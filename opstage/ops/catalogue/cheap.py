"""Ops that are cheaper to compute again than to write down and read back."""

from __future__ import annotations

from .activation import RELU, RELU_GRAD
from .elementwise import ABS, ADD, MAXIMUM, MINIMUM, MUL, NEG, SCALE, SUB
from .logic import CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT

CHEAP = frozenset({
    ABS, ADD, CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, MAXIMUM, MINIMUM, MUL, NEG, RELU, RELU_GRAD,
    SCALE, SELECT, SUB,
})  # fmt: skip
"""Ops that take a cycle or two, beside which a value's way to memory and back takes long."""
