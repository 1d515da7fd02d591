"""Optimizer updates: generated from their decompositions, whose bits they have.

Muon's time goes into matrix products, so it runs op by op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....ops.catalogue.update import (
    ADADELTA_UPDATE,
    ADAGRAD_UPDATE,
    ADAM_UPDATE,
    ADAMW_UPDATE,
    MOMENTUM_UPDATE,
    RMSPROP_UPDATE,
    SGD_UPDATE,
)
from ....ops.primitive import Primitive

KERNELS: dict[Primitive, Callable[..., Any]] = {}

EXACT_KERNELS: dict[Primitive, Callable[..., Any]] = {}

FUSED = (
    ADADELTA_UPDATE,
    ADAGRAD_UPDATE,
    ADAM_UPDATE,
    ADAMW_UPDATE,
    MOMENTUM_UPDATE,
    RMSPROP_UPDATE,
    SGD_UPDATE,
)
