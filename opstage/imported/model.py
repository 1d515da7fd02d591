"""`ImportedModel`: a model of another library as a program over Ops, and the check that all of it is supported."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..api import check
from ..ops.errors import OpstageError, UsageError
from ..options import Options
from .declared import require_declared
from .network import Network
from .problems import InternalError, Problem, require_none


@dataclass(frozen=True, eq=False)
class ImportedModel(ABC):
    """A program `model(ops, params, [state,] *inputs, train=False)`, with its parameters.

    name      the model's own name
    params    its parameters by their original names
    state     the buffers that a step updates, such as running statistics, or None. The program takes it after the
              parameters, and returns (outputs, state after this step)
    inputs    a Spec, or a tree of them, for each input by the name of the program's argument
    outputs   the names of the outputs
    """

    one_size: ClassVar[bool] = True
    """Whether a named size is the same everywhere."""

    name: str
    params: dict[str, Any]
    state: dict[str, Any] | None
    inputs: dict[str, Any]
    outputs: tuple[str, ...]

    def __post_init__(self) -> None:
        kinds = inspect.Parameter
        names = ["ops", "params", *(["state"] if self.state is not None else []), *self.inputs]
        parameters = [kinds(name, kinds.POSITIONAL_ONLY) for name in names]
        parameters.append(kinds("train", kinds.KEYWORD_ONLY, default=False))
        object.__setattr__(self, "__signature__", inspect.Signature(parameters))

    @abstractmethod
    def __call__(self, ops: Any, params: Any, /, *rest: Any, train: bool = False) -> Any:
        """Run the program: return the outputs; with state a pair of those and the state after this step."""

    @property
    @abstractmethod
    def network(self) -> Network:
        """The model as a program with named outputs, for `supervised`."""

    @property
    def batch(self) -> tuple[Any, ...]:
        """The Specs of the inputs, in the order of the program's arguments."""
        return tuple(self.inputs.values())

    @property
    def trees(self) -> tuple[Any, ...]:
        """The arguments of the program before its inputs: parameters, and state if there is one."""
        return (self.params,) if self.state is None else (self.params, self.state)

    def taken(self, ops: Any, rest: Sequence[Any]) -> tuple[dict[str, Any], Sequence[Any]]:
        """Return the state, empty if there is none, and the inputs, from the arguments after the parameters.

        Raises UsageError for too few or too many, and ShapeError or DtypeError for inputs that do not match the model.
        """
        state, inputs = ({}, rest) if self.state is None else (rest[0], rest[1:])
        if len(inputs) != len(self.inputs):
            raise UsageError(f"{self.name} takes {', '.join(self.inputs)}; got {len(inputs)} inputs")
        require_declared(ops, self.name, self.inputs, inputs, one_size=self.one_size)
        return state, inputs

    def check(self, options: Options | None = None, *, train: bool = False) -> Any:
        """Run `opstage.check` on the program, for every open size of the model."""
        return check(self, *self.trees, *self.batch, options=options, train=train)


def require_importable(model: ImportedModel, run: Callable[..., Any]) -> None:
    """Raise UnsupportedError with all unsupported nodes, found by running the model on shapes.

    `run(ops, problems, params, [state,] *inputs)` returns the outputs, and adds to `problems`. A bug in Opstage raises
    InternalError; errors about sizes or inputs are left to a check of the model.
    """
    runs: list[list[Problem]] = []
    faults: list[InternalError] = []

    def program(ops: Any, *arguments: Any) -> Any:
        runs.append([])
        try:
            outputs = run(ops, runs[-1], *arguments)
        except InternalError as error:
            faults.append(error)
            raise
        except OpstageError:
            raise
        except Exception as error:
            faults.append(InternalError(model.name, error))
            raise
        return outputs or ops.full(shape=(), value=0.0)

    check(program, *model.trees, *model.batch)
    if faults:  # a check would record it as a finding, which nothing reads here
        raise faults[0]
    if runs:  # only the first counts: a check may run again on sizes that the model does not accept
        require_none(model.name, runs[0])
