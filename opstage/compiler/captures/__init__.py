"""Captured state: values that a program reads besides its arguments, which may change between two runs.

An eager run sees such a change by itself. Cached results of a run, such as a compiled program or a report, must be
invalidated: `observed` records a run, `Capture` returns the places that it read, and a `Guard` checks whether they are
unchanged.
"""

from .capture import Capture
from .guard import Guard, at_line, generator_state
from .profiler import Observation, observation, observed

__all__ = ["Capture", "Guard", "Observation", "at_line", "generator_state", "observation", "observed"]
