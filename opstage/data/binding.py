"""Bind the arrays of batches to the arguments of a program by name."""

from __future__ import annotations

from typing import Protocol

from ..ops.errors import UsageError
from .loader import Batches, Loader
from .prefetch import Prefetch


class Arguments(Protocol):
    """The names of a program's batch arguments; optional ones come last."""

    @property
    def required(self) -> tuple[str, ...]: ...
    @property
    def optional(self) -> tuple[str, ...]: ...


def bind(batches: Batches, arguments: Arguments | None, program: str) -> Batches:
    """Return the batches with their arrays in the order of a program's batch arguments, matched by name.

    If the names differ from the arguments, the arrays keep the order requested when the dataset was created. Raises
    UsageError if that cannot be right: for a different number of arrays, for a name that is an argument at another
    position, and if no order was requested. `arguments` is None if the program does not name them. Batches that do not
    come from a Dataset are returned unchanged.

    Raises:
        UsageError: names of arrays that are no arguments, or stand elsewhere.
    """
    if not isinstance(batches, (Loader, Prefetch)) or not (names := batches.names):
        return batches
    found = order(names, _ordered(batches), arguments, program)
    return batches if found == names and _ordered(batches) else batches.only(*found)


def order(names: tuple[str, ...], ordered: bool, arguments: Arguments | None, program: str) -> tuple[str, ...]:
    """Return the names of a dataset's arrays in the order of `program`'s arguments; see `bind`."""
    known: tuple[str, ...] = ()
    if arguments is not None:
        more = max(0, len(names) - len(arguments.required))
        known = arguments.required + arguments.optional[:more]
        if set(names) == set(known):
            return known
    has = f"the dataset has the arrays {', '.join(names)}, and {program} "
    each = ", ".join(f"{name}=dataset[…]" for name in known)
    cure = (
        f"; say which goes where: from_arrays({each})"
        if known
        else f"; put them in order: dataset.only({names[0]!r}, …)"
    )
    if arguments is None:
        if not ordered:
            raise UsageError(f"{has}does not name its batch arguments{cure}")
        return names
    takes = f"takes the batch arguments {', '.join(known)}" if known else "takes no batch"
    if len(names) != len(known):
        raise UsageError(f"{has}{takes}{cure}")
    pairs = [(name, argument) for name, argument in zip(names, known) if name != argument]
    strays = [name if name in known else argument for name, argument in pairs if name in known or argument in names]
    if strays:
        raise UsageError(f"{has}{takes}: {strays[0]} would not be the argument of its name{cure}")
    if not ordered:
        raise UsageError(f"{has}{takes}{cure}")
    return names


def _ordered(batches: Batches) -> bool:
    while isinstance(batches, Prefetch):
        batches = batches.batches
    return not isinstance(batches, Loader) or batches.dataset.ordered
