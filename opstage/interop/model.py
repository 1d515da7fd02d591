"""`ImportedModel`: a model of another library as a program over Ops, run node by node on inputs that are checked.

A size that was fixed at export appears in the model as a number in every computation with it, so another size would
silently give wrong results. PyTorch and onnxruntime reject it too.
"""

from __future__ import annotations

import inspect
import keyword
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, ClassVar, Protocol, final

from ..api import check
from ..ops.dims import Dim, require_at_most, require_equal
from ..ops.dims.scope import parse_expression, parse_relations
from ..ops.errors import DtypeError, LocatedError, OpstageError, ShapeError, UnsupportedError, UsageError, brief
from ..ops.protocol import Ops, R
from ..ops.rule_helpers import placed
from ..ops.spec import Spec
from ..ops.trees import flatten, paths
from ..ops.types import as_dtype, dtype_name, show_shape
from ..options import Options
from .network import Network

# Problems -------------------------------------------------------------------------------------------------------------

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


# The run, node by node ------------------------------------------------------------------------------------------------


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


# Declared inputs ------------------------------------------------------------------------------------------------------

_KINDS = {"f": "floats", "b": "booleans", "i": "integers"}
_UNTRIED = 2
"""The least open size that exporters assume: they do not try 1, and PyTorch allows it."""


class _Unknown(Exception):
    """A name that appears only inside expressions."""


def require_declared(
    ops: Ops[R], whose: str, declared: Mapping[str, Any], given: Sequence[Any], *, one_size: bool = True
) -> None:
    """Raise ShapeError or DtypeError, with the name of the input, if inputs do not match the declared Specs.

    one_size  whether a name stands for the same size everywhere; else only numeric sizes are checked

    A size that is an expression in a name that never appears alone is checked if it is linear. Trees of another
    structure are not checked here.
    """
    pairs = [pair for (name, specs), tree in zip(declared.items(), given) for pair in _pairs(name, specs, tree)]
    placed(ops, whose, lambda: _require(pairs, one_size))


def _pairs(name: str, specs: Any, tree: Any) -> Iterator[tuple[str, Spec, Any]]:
    if isinstance(specs, Spec):
        yield name, specs, tree
        return
    leaves, structure = flatten(tree)
    if structure == flatten(specs)[1]:
        for path, spec, leaf in zip(paths(specs), flatten(specs)[0], leaves):
            yield f"{name}.{path}", spec, leaf


def _require(pairs: Sequence[tuple[str, Spec, Any]], one_size: bool) -> None:
    names: dict[str, Dim] = {}
    for name, spec, x in pairs:
        entries = spec.entries
        if len(entries) != len(x.shape):
            raise ShapeError(f"{name} is declared {spec} but is {show_shape(x.shape)}: ranks {len(entries)} and "
                             f"{len(x.shape)} differ")  # fmt: skip
        _require_dtype(name, spec, x)
        for entry, size in zip(map(str, entries), x.shape):
            if entry.isidentifier():
                names.setdefault(entry, size)
    for name, spec, x in pairs:
        for axis, (entry, size) in enumerate(zip(map(str, spec.entries), x.shape)):
            expected = _size(entry, size, names) if one_size or entry.isdecimal() else None
            if expected is not None:
                require_equal(size, expected, _wrong_size(name, spec, x, axis, entry, expected))
    for name, spec, _ in pairs:
        for constraint in spec.where:
            _require_constraint(name, constraint, names)


def _wrong_size(name: str, spec: Spec, x: Any, axis: int, entry: str, expected: Dim) -> Callable[[], str]:
    def message() -> str:
        found = f"{name} is declared {spec} but is {show_shape(x.shape)}: axis {axis} must have"
        if entry != str(expected):
            return f"{found} {entry} = {expected}"
        return f"{found} {entry}; a size that is to be open must be so when the model is exported"

    return message


def _require_dtype(name: str, spec: Spec, x: Any) -> None:
    kind = "f" if spec.dtype is None else as_dtype(spec.dtype).kind
    if x.dtype.kind in _KINDS and kind in _KINDS and x.dtype.kind != kind:
        raise DtypeError(f"{name} is declared {spec}, of {_KINDS[kind]}, but is {dtype_name(x.dtype)}")


def _size(entry: str, size: Dim, names: dict[str, Dim]) -> Dim | None:
    """Return the size of an entry, or None if its name is not bound."""
    if entry.isdecimal():
        return int(entry)
    if entry in names:
        return names[entry]
    try:
        return parse_expression(entry, _from(names))
    except _Unknown as unknown:
        name = str(unknown)
    line = _line(entry, name) if isinstance(size, int) else None
    if line is None or not isinstance(size, int):
        return None
    names[name] = max(1, round((size - line[0]) / line[1]))
    return parse_expression(entry, _from(names))


def _from(names: Mapping[str, Dim]) -> Any:
    def dim(name: str) -> Dim:
        if name not in names:
            raise _Unknown(name)
        return names[name]

    return dim


@lru_cache(maxsize=256)
def _line(entry: str, name: str) -> tuple[int, int] | None:
    """Return (b, a) of an expression a · name + b in one name, or None."""
    try:
        one, two, three = (parse_expression(entry, _from({name: n})) for n in (1, 2, 3))
    except _Unknown:
        return None
    slope = two - one
    if not isinstance(one, int) or not isinstance(slope, int) or slope <= 0 or three - two != slope:
        return None
    return one - slope, slope


def _require_constraint(name: str, constraint: str, names: Mapping[str, Dim]) -> None:
    def message() -> str:
        sizes = ", ".join(f"{each} = {size}" for each, size in names.items())
        return f"{name} is declared where {constraint}, which does not hold of {sizes}"

    try:
        relations = parse_relations(constraint, _from(names))
    except _Unknown:
        return
    for left, operator, right in relations:
        if operator in (">", ">="):
            left, right = right, left
            if operator == ">=" and left == _UNTRIED:
                continue
        if operator == "==":
            require_equal(left, right, message)
        else:
            require_at_most(left + (operator in ("<", ">")), right, message)


# The model ------------------------------------------------------------------------------------------------------------


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

    kind: ClassVar[str]
    """The kind of model, as written source names it: "an ONNX model"."""

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


# Names ----------------------------------------------------------------------------------------------------------------

_TAKEN = ("ops", "params", "state", "train")


def argument_name(name: str, taken: Container[str]) -> str:
    """Return the name as a unique Python identifier."""
    plain = re.sub(r"\W+", "_", name).strip("_") or "x"
    plain = f"_{plain}" if plain[0].isdigit() or keyword.iskeyword(plain) else plain
    unique, i = plain, 1
    while unique in taken or unique in _TAKEN:
        i += 1
        unique = f"{plain}_{i}"
    return unique
