"""Kernels: rounding, integer division, bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops.catalogue.rounding import (
    BITWISE_AND,
    BITWISE_OR,
    BITWISE_XOR,
    FLOOR,
    FLOOR_DIVIDE,
    LEFT_SHIFT,
    MOD,
    RIGHT_SHIFT,
    ROUND,
)
from ....ops.primitive import Primitive

KERNELS: dict[Primitive, Callable[..., Any]] = {
    FLOOR: np.floor,
    ROUND: np.rint,
    FLOOR_DIVIDE: np.floor_divide,
    MOD: np.remainder,
    BITWISE_AND: np.bitwise_and,
    BITWISE_OR: np.bitwise_or,
    BITWISE_XOR: np.bitwise_xor,
    LEFT_SHIFT: np.left_shift,
    RIGHT_SHIFT: np.right_shift,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
