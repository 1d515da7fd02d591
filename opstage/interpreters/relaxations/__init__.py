"""Linear bounds over any interpreter: each ref knows lines below and above it, in the refs that it was made from."""

from . import rules as rules  # here: a module that a recorded program imports would be a change of Python's state
from .interpreter import Related, Relaxed

__all__ = ["Related", "Relaxed"]
