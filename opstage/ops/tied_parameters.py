"""Which leaves of a tree are one shared parameter: `Places` lists the parameters of a tree and their positions.

Code that counts, updates, saves or describes the parameters of a tree goes through `Places`, so that it visits none
twice. Only leaves of classes decorated with `identified` are compared by identity: a `Param` is one parameter wherever
it is. Any other leaf is a value or a recipe (an array, a Spec, a Declaration), and counts separately at each position.
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
    """Mark a class of leaves that are parameters by identity: one object at two positions of a tree is one
    parameter."""
    setattr(cls, _MARK, True)
    return cls


def is_identified(leaf: Any) -> bool:
    """Return whether a leaf is a parameter by identity."""
    return hasattr(type(leaf), _MARK)


@final
@dataclass(frozen=True, eq=False)
class Places:
    """The distinct parameters of a tree, in the order of their first positions.

    structure   of the tree, with a leaf for every position
    owners      for every position, the number of its parameter
    """

    structure: trees.Structure
    owners: tuple[int, ...]

    @classmethod
    def of(cls, tree: Any) -> Places:
        """Return the places of a tree of Params, arrays, Specs or declarations."""
        leaves, structure = trees.flatten(tree)
        return cls.among(structure, leaves)

    @classmethod
    def among(cls, structure: trees.Structure, leaves: Sequence[Any]) -> Places:
        """Return the places of a flattened tree."""
        owners: list[int] = []
        known: dict[int, int] = {}
        count = 0
        for item in leaves:
            number = known.setdefault(id(item), count) if is_identified(item) else count
            owners.append(number)
            count += number == count
        return cls(structure, tuple(owners))

    def __len__(self) -> int:
        """Return the number of parameters."""
        return len(self._firsts)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Return the dotted path of every position."""
        return tuple(trees.structure_paths(self.structure))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the path of each parameter's first position, which names it in files and messages."""
        return tuple(self.first(self.paths))

    @cached_property
    def tied(self) -> dict[str, tuple[str, ...]]:
        """Return the parameters with several positions: name -> all paths."""
        return {group[0]: group for group in self.groups(self.paths)} if len(self) < len(self.owners) else {}

    @cached_property
    def all_paths(self) -> tuple[tuple[str, ...], ...]:
        """Return the paths of each parameter, its name first."""
        return tuple([self.tied.get(name, (name,)) for name in self.names])

    @cached_property
    def _firsts(self) -> tuple[int, ...]:
        """Return the index of each parameter's first position."""
        at: dict[int, int] = {}
        for place, owner in enumerate(self.owners):
            at.setdefault(owner, place)
        return tuple(at.values())

    # From positions to parameters, and back -------------------------------------------------------------------------

    def first(self, column: Sequence[T]) -> list[T]:
        """Return each parameter's entry at its first position, from a `column` with an entry for every position."""
        return [column[place] for place in self._firsts]

    def groups(self, column: Sequence[T]) -> list[tuple[T, ...]]:
        """Return the entries of each tied parameter at its positions."""
        at: dict[int, list[T]] = {}
        for entry, owner in zip(column, self.owners):
            at.setdefault(owner, []).append(entry)
        return [tuple(group) for group in at.values() if len(group) > 1]

    def agreed(self, column: Sequence[T], what: str, same: Callable[[T, T], bool] | None = None) -> list[T]:
        """Return `first`, if all positions of each parameter have the same entry, as compared by `same` or ==.

        Raises UsageError, which names `what` differs and both positions.
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

    @cached_property
    def written(self) -> tuple[int, ...]:
        """Return the index of each parameter's first position in the tree as users wrote it; see
        `trees.written_order`."""
        at: dict[int, int] = {}
        for place in trees.written_order(self.structure):
            at.setdefault(self.owners[place], place)
        return tuple(at.values())

    def columns(self, column: Sequence[T]) -> Sequence[T] | None:
        """Return an entry for every position from a flat list of them in the order in which users wrote the tree, one
        per position or per parameter; None for other lengths."""
        if len(column) == len(self.owners):
            at = dict(zip(trees.written_order(self.structure), column))
            return [at[place] for place in range(len(at))]
        if len(column) != len(self):
            return None
        of = dict(zip([self.owners[place] for place in self.written], column))
        return [of[owner] for owner in self.owners]

    def spread(self, values: Sequence[T]) -> list[T]:
        """Return the value of the parameter at every position."""
        return [values[owner] for owner in self.owners] if len(self) < len(self.owners) else list(values)

    def tree(self, values: Sequence[Any]) -> Any:
        """Return the tree with each parameter's value, as one object, at all of its positions."""
        return trees.unflatten(self.structure, self.spread(values))

    def arrays(self, values: Sequence[Any]) -> Any:
        """Return `tree` of host arrays. Arrays at several positions are read-only, since writing at each position in
        turn would write several times."""
        for value, count in zip(values, Counter(self.owners).values() if self.tied else ()):
            if count > 1 and isinstance(value, np.ndarray):
                value.flags.writeable = False
        return self.tree(values)

    def collapsed(
        self, found: Mapping[str, T], what: str, same: Callable[[T, T], bool], advice: str = ""
    ) -> dict[str, T]:
        """Convert values by path to one value per parameter, by name; unknown paths are kept.

        So values saved when the positions were separate parameters can be loaded if they are the `same` at all
        positions. Otherwise raises UsageError, which names `what` differs and both paths; `advice` is appended.
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
                    f"{what} differ at {both}, which are one parameter here; create the trainer with two Params "
                    f"there to continue with separate values{advice}"
                )
            values.setdefault(name, value)
            origins.setdefault(name, path)
        return values


def show_tied(paths: Iterable[str]) -> str:
    """Format the positions of one parameter: `embedding = head.weight`."""
    return " = ".join(map(trees.show_path, paths))


def _both(a: Any, b: Any) -> str:
    """Format two values for a message, if they are short."""
    texts = [repr(a), repr(b)]
    return f", {texts[0]} and {texts[1]}" if all(len(text) <= 60 and "\n" not in text for text in texts) else ""
