"""Shipped models with one mistake each, as a person would make it, and what a check is to say of it."""

from .bug import Bug
from .dense import DENSE
from .images import IMAGES
from .sequences import SEQUENCES

__all__ = ["BUGS", "Bug"]

BUGS: dict[str, Bug] = {bug.name: bug for bug in (*DENSE, *IMAGES, *SEQUENCES)}
