"""Passes: functions from a body to an equivalent body, each in its own file.

A pass returns the same object if it changes nothing. Its result can be run but not differentiated: derivatives were
taken when the program was recorded. A pass sees one body; the pipeline applies it to the bodies of loops.
"""

from .common import common_subexpressions
from .dead_code import dead_code
from .expansion import expand
from .folding import fold_constants
from .identities import simplify
from .pipeline import Notes, optimise, standard, through_loops
from .uniform import Uniforms

__all__ = [
    "Notes",
    "Uniforms",
    "common_subexpressions",
    "dead_code",
    "expand",
    "fold_constants",
    "optimise",
    "simplify",
    "standard",
    "through_loops",
]
