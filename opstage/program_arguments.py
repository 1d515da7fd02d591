"""How a program's arguments are read: their names, lists that stand for tensors, and `train`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

from .ops.errors import UsageError, a_type
from .ops.spec import declared, lists_by_specs
from .ops.trees import NUMBERS, flatten, lists_as_arrays, paths

Program = Callable[..., Any]


def require_arguments(name: str, example: str, args: Any, tangents: Any = ()) -> None:
    """Raise UsageError unless a derivative got its arguments, at least one, and tangents in tuples; `example` is a
    right call."""
    for what, row in (("arguments", args), ("tangents", tangents)):
        if not isinstance(row, (tuple, list)):
            raise UsageError(f"{name} takes {what} as a tuple, not {a_type(row)}: {example}")
    if not args:
        raise UsageError(f"{name} returns values, not a function: give the arguments after the program, {example}")


def with_arrays(program: Program, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert every list of numbers in the arguments to an array, except where the program declares a list of tensors.

    Raises UsageError for rows of different lengths.
    """
    if not any(isinstance(leaf, NUMBERS) for leaf in flatten(args)[0]):
        return tuple(args)
    shapes = declared(program)
    if shapes is None:
        return tuple(map(lists_as_arrays, args))
    arguments = batch_arguments(program, skip=1)
    names = () if arguments is None else (*arguments.required, *arguments.optional)
    specs = [shapes.inputs.get(name) for name in names]
    known = [lists_as_arrays(arg) if spec is None else lists_by_specs(spec, arg) for spec, arg in zip(specs, args)]
    return (*known, *map(lists_as_arrays, args[len(specs) :]))


def bind_train(program: Program, train: bool, args: tuple[Any, ...]) -> Program:
    """Return `with_train(program, train)`, to be called with these arguments.

    Raises a UsageError where the last argument is a dict that stands for several of the program's arguments. A trainer
    matches a dict's entries to arguments by name; here every argument is passed separately, since each may have a
    gradient.
    """
    program = with_train(program, train)
    if not args or not isinstance(args[-1], Mapping):
        return program
    arguments = batch_arguments(program, skip=1)
    if arguments is not None and len(args) < len(arguments.required):
        names, given = arguments.required, ", ".join(map(str, args[-1])) or "nothing"
        raise UsageError(
            f"the program takes the arguments {', '.join(names)}, but got {len(args)}: the last one, for "
            f"{names[len(args) - 1]}, is a dict of {given}. Pass each of its entries as a separate argument"
        )
    return program


def with_train(program: Program, train: bool) -> Program:
    """Return the program with `train=` passed in, if it has such a keyword."""
    if type(program) is FunctionType and not program.__dict__ and "train" not in program.__code__.co_varnames:
        return program  # known without its signature, which takes longer than a small program
    try:
        parameters = inspect.signature(program).parameters
    except (TypeError, ValueError):
        return program
    declared = parameters.get("train")
    if declared is None or declared.kind is inspect.Parameter.POSITIONAL_ONLY:
        return program

    def trained(*args: Any) -> Any:
        return program(*args, train=train)

    remaining = [p for name, p in parameters.items() if name != "train"]
    trained.__wrapped__ = program  # type: ignore[attr-defined]  # where its arguments are written
    trained.__signature__ = inspect.Signature(remaining)  # type: ignore[attr-defined]  # names arguments in messages
    return trained


def argument_paths(program: Program, trees: tuple[Any, ...]) -> list[str]:
    """Return the path of every leaf of the arguments, by the names of the program's own parameters: `params.w1`, `x`,
    and `rest[0]` for the first argument in `*rest`."""
    try:
        parameters = list(inspect.signature(program).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    kinds = inspect.Parameter
    rest = next((i for i, p in enumerate(parameters) if p.kind is kinds.VAR_POSITIONAL), None)
    names = [p.name for p in parameters[:rest]][1:]
    result = []
    for i, tree in enumerate(trees):
        if i < len(names):
            name = names[i]
        else:  # where *rest holds the interpreter too, its own positions count from there
            name = f"argument {i + 1}" if rest is None else f"{parameters[rest].name}[{i + 1 - rest}]"
        result += [f"{name}.{path}" if path else name for path in paths(tree)]
    return result


class BatchArguments(NamedTuple):
    """The names of a program's batch arguments; the `optional` ones have defaults and come last."""

    required: tuple[str, ...]
    optional: tuple[str, ...]


def batch_arguments(program: Program, *, skip: int) -> BatchArguments | None:
    """Return the program's positional arguments except the first `skip`; None where it does not name all of them.

    `train` is not included: it is passed by name, see `with_train`.
    """
    try:
        parameters = list(inspect.signature(program).parameters.values())
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        return None
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)][skip:]
    batch = [p for p in positional if p.name != "train"]
    required = tuple([p.name for p in batch if p.default is kinds.empty])
    return BatchArguments(required, tuple([p.name for p in batch if p.default is not kinds.empty]))
