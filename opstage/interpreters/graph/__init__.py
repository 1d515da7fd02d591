"""Programs recorded once: a graph to look at, to optimise, to compile and to replay."""

from .graph import Graph
from .recorder import Recorder, record

__all__ = ["Graph", "Recorder", "record"]
