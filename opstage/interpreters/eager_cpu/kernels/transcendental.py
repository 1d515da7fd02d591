"""Kernels: powers, logarithms and angles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ops.catalogue.transcendental import ATAN, EXP2, LOG2, LOG10
from ....ops.primitive import Primitive

KERNELS: dict[Primitive, Callable[..., Any]] = {
    EXP2: np.exp2,
    LOG2: np.log2,
    LOG10: np.log10,
    ATAN: np.arctan,
}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}
