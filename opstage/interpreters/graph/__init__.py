"""Recorded programs: graphs that are inspected, optimised, compiled and replayed."""

from .graph import Graph
from .recorder import Recorder, record

__all__ = ["Graph", "Recorder", "record"]
__dir__ = __all__.copy
