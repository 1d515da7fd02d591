"""Unsupported nodes, collected and reported in one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..ops.errors import OpstageError, UnsupportedError
from ..ops.untrusted import brief

_MOST_PROBLEMS = 200


class Unimportable(UnsupportedError):
    """The error that lists all unsupported nodes."""


class InternalError(OpstageError):
    """A bug in Opstage, found while running a model. It says nothing about the model."""

    def __init__(self, where: str, cause: Exception):
        super().__init__(
            f"{where}: Opstage failed here with {type(cause).__name__}: {brief(str(cause))}; this is a fault of "
            "Opstage's, not of the model's; please report it, with the model if you can"
        )


@dataclass(frozen=True)
class Problem:
    """A node that cannot be imported, with its label in messages and the reason."""

    label: str
    why: str


@final
class Lost:
    """A placeholder for the results of a node that cannot be imported."""


LOST = Lost()


def require_none(name: str, problems: Sequence[Problem]) -> None:
    """Raise Unimportable with all problems of the model `name`, one per line."""
    if not problems:
        return
    lines = [f"{problem.label}: {problem.why}" for problem in problems[:_MOST_PROBLEMS]]
    more = len(problems) - len(lines)
    lines += [f"and {more} more"] if more else []
    raise Unimportable("\n  ".join([f"{name} cannot be imported; its nodes that have no meaning here:", *lines]))
