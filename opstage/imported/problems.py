"""Nodes that have no meaning here, gathered and refused in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..ops.errors import UnsupportedError

_MOST_PROBLEMS = 200


class Unimportable(UnsupportedError):
    """Nodes that have no meaning here, all of them."""


@dataclass(frozen=True)
class Problem:
    """A node that cannot be imported, as messages name it, and why."""

    label: str
    why: str


@final
class Lost:
    """Stands for the results of a node that cannot be imported."""


LOST = Lost()


def require_none(name: str, problems: Sequence[Problem]) -> None:
    """Raise Unimportable with all problems of the model `name`, each on a line."""
    if not problems:
        return
    lines = [f"{problem.label}: {problem.why}" for problem in problems[:_MOST_PROBLEMS]]
    more = len(problems) - len(lines)
    lines += [f"and {more} more"] if more else []
    raise Unimportable("\n  ".join([f"{name} cannot be imported; its nodes that have no meaning here:", *lines]))
