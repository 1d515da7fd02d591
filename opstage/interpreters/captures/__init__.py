"""Captured state: values that a program reads besides its arguments, which may change between two runs.

An eager run sees such a change by itself. Whoever keeps what a program did, a compiled program or a report on one, asks
here what it read: `observed` while it runs, `Capture` for the places, a `Guard` for whether they hold the same.
"""

from .capture import Capture
from .guard import Guard, state_of
from .observation import Observation, observation, observed
from .slots import at_line

__all__ = ["Capture", "Guard", "Observation", "at_line", "observation", "observed", "state_of"]
