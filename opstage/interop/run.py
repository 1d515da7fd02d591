"""`ImportedRun`: one run of an imported graph on an interpreter, node by node, and the report of unsupported nodes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar, Protocol, final

from ..ops.errors import LocatedError, OpstageError, UnsupportedError
from ..ops.protocol import Ops
from ..ops.untrusted import brief

# Problems ------------------------------------------------------------------------------------------------------------

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


class ImportedNode(Protocol):
    """A node of either library: its name in messages, the modules around it, and the values that it reads."""

    @property
    def label(self) -> str: ...
    @property
    def modules(self) -> tuple[str, ...]: ...
    @property
    def inputs(self) -> tuple[str, ...]: ...


@dataclass(kw_only=True)
class ImportedRun(ABC):
    """One run of a model.

    train      whether dropout and updates of running statistics are on
    buffers    the values of the model's buffers by name
    moved      the new values from this step
    problems   collects nodes that cannot be imported; if None, the first one raises
    around     the values so far, by name
    """

    whole: ClassVar[str]
    """The owner of a node, in messages."""

    train: bool
    buffers: Mapping[str, Any]
    moved: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] | None = None
    around: MutableMapping[str, Any] = field(default_factory=dict)

    @abstractmethod
    def results(self, ops: Ops[Any], node: Any) -> Any:
        """Return the results of a node by the rule of its operator."""

    @abstractmethod
    def named(self, node: Any, results: Any) -> Mapping[str, Any]:
        """Return the results of a node by name; `results` is LOST if it cannot be imported."""

    def buffer(self, name: str) -> Any:
        """Return the value of a buffer, such as a running mean."""
        return self.moved.get(name, self.buffers.get(name))

    def keep(self, name: str, value: Any) -> None:
        """Set the value of a buffer after this step; statistics that are not buffers are not updated."""
        if name in self.buffers:
            self.moved[name] = value

    def nodes(self, ops: Ops[Any], nodes: Sequence[Any], level: int = 0) -> None:
        """Run nodes in order, with consecutive nodes of one module in one region."""
        for module, group in groupby(nodes, lambda node: node.modules[level] if len(node.modules) > level else None):
            inside = list(group)
            if module is not None:
                ops.region(module, lambda inner, inside=inside: self.nodes(inner, inside, level + 1))
            else:
                for node in inside:
                    self.node(ops, node)

    def node(self, ops: Ops[Any], node: Any) -> None:
        """Run a node, and add its results to `around`."""
        results: Any = LOST
        try:
            if not any(self.around[name] is LOST for name in node.inputs if name):
                results = self._checked(ops, node)
        except UnsupportedError as error:
            if isinstance(error, Unimportable) or self.problems is None:
                raise self._at(error, node) from None
            problem = Problem(node.label, error.reason)
            if problem not in self.problems:  # a body may be traced twice
                self.problems.append(problem)
        except LocatedError as error:
            raise self._at(error, node) from None
        self.around.update(self.named(node, results))

    def _checked(self, ops: Ops[Any], node: ImportedNode) -> Any:
        try:
            return self.results(ops, node)
        except OpstageError:
            raise
        except Exception as error:
            if not isinstance(error, _OF_BAD_NODES) or not _raised_by_a_rule(error):
                raise InternalError(node.label, error) from error
            what = brief(str(error))
            raise UnsupportedError(f"its inputs and attributes are none that the operator takes: {what}") from error

    def _at(self, error: LocatedError, node: ImportedNode) -> LocatedError:
        """Attach the node to the error, unless an inner node is already attached."""
        if not getattr(error, "node", None):
            error.node = node  # type: ignore[attr-defined]
            error.add_note(f"in {node.label} of the {self.whole}")
        return error


_OF_BAD_NODES = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""Python errors of a rule that meets unexpected kinds of attributes or inputs."""

_PACKAGE = __name__.partition(".")[0]
_RULES = f"{_PACKAGE}.interop."


def _raised_by_a_rule(error: Exception) -> bool:
    """Whether the innermost Opstage frame of an error is a rule. Deeper frames, where ops have validated their
    arguments, indicate a bug in Opstage."""
    innermost, traceback = "", error.__traceback__
    while traceback is not None:
        name = str(traceback.tb_frame.f_globals.get("__name__", ""))
        innermost = name if name.split(".")[0] == _PACKAGE else innermost
        traceback = traceback.tb_next
    return innermost.startswith(_RULES)
