"""Opstage: models and losses written once against `Ops`, and interpreters that run, differentiate and check them."""

from __future__ import annotations

__version__ = "0.1.0"

from . import init, models
from .api import check, hvp, jvp, run, value_and_grad, vjp
from .compilation import CompiledOut, CompiledScalar, compile, record
from .interpreters.wire import register_wire_format
from .ops import derived, transform
from .ops.declared import shapes
from .ops.errors import (
    DeviceError,
    DtypeError,
    OpstageError,
    OutOfMemoryError,
    ProgramError,
    ProgramWarning,
    RangeError,
    ShapeError,
    UnsupportedError,
    UsageError,
    ValidationError,
)
from .ops.program import Aux
from .ops.protocol import Ops, Ref
from .ops.spec import Spec
from .options import Options
from .training import optim
from .training.module import ScalarModule, ScalarModuleDef
from .training.param import Param
from .training.session import Session
from .training.trainer import ScalarTrainer, scalar_trainer
from .training.validate import check_step

__all__ = [
    "Aux",
    "CompiledOut",
    "CompiledScalar",
    "DeviceError",
    "DtypeError",
    "Ops",
    "OpstageError",
    "Options",
    "OutOfMemoryError",
    "Param",
    "ProgramError",
    "ProgramWarning",
    "RangeError",
    "Ref",
    "ScalarModule",
    "ScalarModuleDef",
    "ScalarTrainer",
    "Session",
    "ShapeError",
    "Spec",
    "UnsupportedError",
    "UsageError",
    "ValidationError",
    "check",
    "check_step",
    "compile",
    "derived",
    "hvp",
    "init",
    "jvp",
    "models",
    "optim",
    "record",
    "register_wire_format",
    "run",
    "scalar_trainer",
    "shapes",
    "transform",
    "value_and_grad",
    "vjp",
]
