"""Initialisers, and plans that assign one to every parameter.

declared = {"w": Declaration((256, 64), kaiming_uniform()), "b": Declaration((256,), zeros)}
params = build(declared, dtype="float32", seed=0)
"""

from typing import TYPE_CHECKING

from ..ops.hints import of_a_module
from .plan import Declaration, Placement, Plan, build, keys, parameter_seed
from .schemes import (
    Constant,
    Elementary,
    Flat,
    Initialiser,
    KaimingUniform,
    Normal,
    Uniform,
    XavierUniform,
    fans,
    flat,
    kaiming_uniform,
    normal,
    ones,
    uniform,
    xavier_uniform,
    zeros,
)

__all__ = [
    "Constant",
    "Declaration",
    "Elementary",
    "Flat",
    "Initialiser",
    "KaimingUniform",
    "Normal",
    "Placement",
    "Plan",
    "Uniform",
    "XavierUniform",
    "build",
    "fans",
    "flat",
    "kaiming_uniform",
    "keys",
    "normal",
    "ones",
    "parameter_seed",
    "uniform",
    "xavier_uniform",
    "zeros",
]
__dir__ = __all__.copy


if not TYPE_CHECKING:  # type checkers should report unknown names

    def __getattr__(name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{of_a_module(__name__, name, __all__)}")
