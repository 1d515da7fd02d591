"""Ops that are cheaper to recompute than to store and load."""

from __future__ import annotations

from .activation import RELU, RELU_GRAD
from .elementwise import ABS, ADD, MAXIMUM, MINIMUM, MUL, NEG, SCALE, SUB
from .logic import CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, SELECT

CHEAP = frozenset({
    ABS, ADD, CAST, EQUAL, LESS, LESS_EQUAL, LOGICAL_AND, LOGICAL_NOT, MAXIMUM, MINIMUM, MUL, NEG, RELU, RELU_GRAD,
    SCALE, SELECT, SUB,
})  # fmt: skip
"""Ops of one or two cycles, far less than the latency of memory."""
