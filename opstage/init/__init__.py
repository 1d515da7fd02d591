"""Initialisers, and plans that assign one to every parameter.

declared = {"w": Declaration((256, 64), kaiming_uniform()), "b": Declaration((256,), zeros)}
params = build(declared, dtype="float32", seed=0)
"""

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
