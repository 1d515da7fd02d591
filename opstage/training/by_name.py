"""Match the named arrays of a batch to the arguments of a program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..arguments import BatchArguments, batch_arguments
from ..data.binding import order
from ..data.dataset import Dataset
from ..ops.errors import UsageError, nearest


def by_position(batch: tuple[Any, ...], program: Callable[..., Any], skip: int, called: str = "the loss") -> Any:
    """Return the batch in the order of a program's batch arguments, if it is one dict of several of them or one
    Dataset.

    A program with one argument, or with unnamed arguments, receives a dict unchanged, as a tree. The first `skip`
    arguments of the program are not part of the batch; `called` names the program in messages. Raises UsageError,
    listing both sides, if names and arguments do not match.
    """
    if len(batch) == 1 and isinstance(batch[0], Mapping):
        return _entries(batch[0], batch_arguments(program, skip=skip), called) or batch
    if not any(isinstance(each, Dataset) for each in batch):
        return batch
    if len(batch) > 1:
        raise UsageError(
            "a Dataset is a whole batch, whose arrays go to the arguments of their names; give nothing beside it, or "
            "its arrays one by one: dataset['x']"
        )
    dataset = batch[0]
    names = order(dataset.names, dataset.ordered, batch_arguments(program, skip=skip), called)
    return tuple([dataset[name] for name in names])


def require_count(count: int, program: Callable[..., Any], skip: int, called: str = "the loss") -> None:
    """Raise UsageError if the program does not take this number of batch arguments."""
    arguments = batch_arguments(program, skip=skip)
    if arguments is None or len(arguments.required) <= count <= len(arguments.required) + len(arguments.optional):
        return
    names = ", ".join((*arguments.required, *arguments.optional)) or "none"
    raise UsageError(
        f"{called} takes the batch arguments {names}, but {count} were given; give each as an argument of its own, as "
        "tuple entries of a sample, or one dict of them"
    )


def _entries(given: Mapping[Any, Any], arguments: BatchArguments | None, called: str) -> tuple[Any, ...] | None:
    """Return the values of a dict keyed by argument, in argument order, or None if the dict itself is the argument."""
    if arguments is None:
        return None
    required, optional = arguments
    known = (*required, *optional)
    if len(required) < 2 and not (len(given) > 1 and set(given) <= set(known)):
        return None
    taken = known[: max(len(given), len(required))]
    if set(given) == set(taken):
        return tuple([given[name] for name in taken])
    missing, extra = [n for n in taken if n not in given], [str(name) for name in given if name not in taken]
    beside = f" (and may take {', '.join(optional)}, in that order)" if optional else ""
    why = [f"{missing[0]} is missing{nearest(missing[0], extra)}"] if missing else []
    why += [f"{extra[0]} is none of them"] if extra else []
    each = ", ".join(f"{name!r}: …" for name in required)
    raise UsageError(
        f"the batch is a dict of {', '.join(map(str, given)) or 'nothing'}, and {called} takes the batch arguments "
        f"{', '.join(required)}{beside}: {'; '.join(why)}. Give {{{each}}}, or the arrays in the order of the arguments"
    )
