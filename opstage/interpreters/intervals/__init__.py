"""Interval bounds over any interpreter: each ref is a pair of refs, a lower and an upper bound."""

from . import rules as rules  # here: a module that a recorded program imports would be a change of Python's state
from .interpreter import Interval, Intervals

__all__ = ["Interval", "Intervals"]
