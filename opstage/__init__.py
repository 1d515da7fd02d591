"""Opstage: models and losses written once against `Ops`, and interpreters that run, differentiate and check them."""

from __future__ import annotations

__version__ = "0.1.0"

from .api import check, hvp, jvp, run, value_and_grad, vjp
from .ops import transform
from .ops.errors import (
    DtypeError,
    OpstageError,
    ProgramError,
    RangeError,
    ShapeError,
    UnsupportedError,
    UsageError,
)
from .ops.protocol import Ops, Ref
from .ops.spec import Spec
from .options import Options

__all__ = [
    "DtypeError",
    "Ops",
    "OpstageError",
    "Options",
    "ProgramError",
    "RangeError",
    "Ref",
    "ShapeError",
    "Spec",
    "UnsupportedError",
    "UsageError",
    "check",
    "hvp",
    "jvp",
    "run",
    "transform",
    "value_and_grad",
    "vjp",
]
