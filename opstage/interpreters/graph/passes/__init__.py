"""Passes: functions from a body to a body that computes the same, each in a file of its own.

A pass returns the very body that it was given where it finds nothing to do. What it makes is to be run, not
differentiated: derivatives were taken when the program was recorded. A pass sees one body; the bodies of loops in it
are the business of the pipeline.
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
