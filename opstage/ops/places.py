"""`Places`: which parameters a tree holds, and where. One that is at several places is one parameter: it is tied.

Whatever goes over the parameters of a tree, to count, update, save or describe them, goes over `Places`, so that it
meets none of them twice. Only the leaves of a class decorated with `identified` are compared by identity: a `Param`
is a parameter, wherever it is. Everything else is a value or a recipe (an array, a Spec, a Declaration), and what
is at two places is two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, final

import numpy as np

from . import trees
from .errors import UsageError

T = TypeVar("T")
Class = TypeVar("Class", bound=type)

_MARK = "__opstage_identified__"


def identified(cls: Class) -> Class:
    """Class decorator for leaves that are parameters by identity: one object at two places of a tree is one of them."""
    setattr(cls, _MARK, True)
    return cls


def is_identified(leaf: Any) -> bool:
    """Whether a leaf is a parameter by identity."""
    return hasattr(type(leaf), _MARK)


@final
@dataclass(frozen=True, eq=False)
class Places:
    """The parameters of a tree, each once, in the order in which they come first.

    structure   of the tree, which has a leaf for every place
    owners      for every place the number of the parameter that is there
    """

    structure: trees.Structure
    owners: tuple[int, ...]

    @classmethod
    def of(cls, tree: Any) -> Places:
        """Those of a tree of Params, arrays, Specs, declarations."""
        leaves, structure = trees.flatten(tree)
        return cls.among(structure, leaves)

    @classmethod
    def among(cls, structure: trees.Structure, leaves: Sequence[Any]) -> Places:
        """`of` for a tree that was taken apart."""
        owners: list[int] = []
        known: dict[int, int] = {}
        count = 0
        for item in leaves:
            number = known.setdefault(id(item), count) if is_identified(item) else count
            owners.append(number)
            count += number == count
        return cls(structure, tuple(owners))

    def __len__(self) -> int:
        """How many parameters there are."""
        return len(self._firsts)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The dotted path of every place."""
        return tuple(trees.structure_paths(self.structure))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """For every parameter the path of its first place, by which it is known in files and messages."""
        return tuple(self.first(self.paths))

    @cached_property
    def tied(self) -> dict[str, tuple[str, ...]]:
        """The parameters that stand at several places: name -> the paths of all of them."""
        return {group[0]: group for group in self.groups(self.paths)} if len(self) < len(self.owners) else {}

    @cached_property
    def all_paths(self) -> tuple[tuple[str, ...], ...]:
        """Of every parameter the paths of all its places, its name first."""
        return tuple([self.tied.get(name, (name,)) for name in self.names])

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """For every parameter the number of its first place."""
        at: dict[int, int] = {}
        for place, owner in enumerate(self.owners):
            at.setdefault(owner, place)
        return tuple(at.values())

    # From places to parameters, and back ----------------------------------------------------------------------------

    def first(self, column: Sequence[T]) -> list[T]:
        """For every parameter what `column`, which has an entry for every place, has at its first one."""
        return [column[place] for place in self._firsts]

    def groups(self, column: Sequence[T]) -> list[tuple[T, ...]]:
        """For every parameter that is at several places what `column` has at each of them."""
        at: dict[int, list[T]] = {}
        for entry, owner in zip(column, self.owners):
            at.setdefault(owner, []).append(entry)
        return [tuple(group) for group in at.values() if len(group) > 1]

    def agreed(self, column: Sequence[T], what: str, same: Callable[[T, T], bool] | None = None) -> list[T]:
        """`first`, where all places of a parameter must have the same: equal, or as `same` says.

        Raises UsageError, naming `what` they have and both places.
        """
        for place, owner in enumerate(self.owners):
            first = self._firsts[owner]
            a, b = column[first], column[place]
            if first != place and not (same(a, b) if same is not None else a == b):
                both = f"{trees.show_path(self.paths[first])} and {trees.show_path(self.paths[place])}"
                raise UsageError(
                    f"{both} are one parameter, but are given two {what}{_both(a, b)}; give both places the same, or "
                    "put two Params there"
                )
        return self.first(column)

    def columns(self, column: Sequence[T]) -> Sequence[T] | None:
        """A flat list with an entry for every place, from one for every place or parameter; None of other lengths."""
        if len(column) == len(self.owners):
            return column
        return self.spread(column) if len(column) == len(self) else None

    def spread(self, values: Sequence[T]) -> list[T]:
        """For every place the value of its parameter."""
        return [values[owner] for owner in self.owners] if len(self) < len(self.owners) else list(values)

    def tree(self, values: Sequence[Any]) -> Any:
        """The tree with the value of a parameter, one object, at each of its places."""
        return trees.unflatten(self.structure, self.spread(values))

    def arrays(self, values: Sequence[Any]) -> Any:
        """`tree` of host arrays. One that is at several places is read-only: whoever writes at each place in turn
        would write to it several times."""
        for value, count in zip(values, Counter(self.owners).values() if self.tied else ()):
            if count > 1 and isinstance(value, np.ndarray):
                value.flags.writeable = False
        return self.tree(values)

    def collapsed(
        self, found: Mapping[str, T], what: str, same: Callable[[T, T], bool], advice: str = ""
    ) -> dict[str, T]:
        """Values by path, brought to one for each parameter by its name; paths that are none of ours stay.

        So what was written where the places were parameters of their own can be read, if it is the `same` at all of
        them. Raises UsageError, naming `what` was found and both paths, where it is not; `advice` is what else to do.
        """
        if not self.tied:
            return dict(found)
        names = dict(zip(self.paths, self.spread(self.names)))
        values: dict[str, T] = {}
        origins: dict[str, str] = {}
        for path, value in found.items():
            name = names.get(path, path)
            if name in values and not same(values[name], value):
                both = f"{trees.show_path(origins[name])} and {trees.show_path(path)}"
                raise UsageError(
                    f"{what} differ at {both}, which are one parameter here; make the trainer with two Params there to "
                    f"go on with them apart{advice}"
                )
            values.setdefault(name, value)
            origins.setdefault(name, path)
        return values


def show_tied(paths: Iterable[str]) -> str:
    """The places of one parameter, for people: `embedding = head.weight`."""
    return " = ".join(map(trees.show_path, paths))


def _both(a: Any, b: Any) -> str:
    """Two values for a message, where they are short."""
    texts = [repr(a), repr(b)]
    return f", {texts[0]} and {texts[1]}" if all(len(text) <= 60 and "\n" not in text for text in texts) else ""
