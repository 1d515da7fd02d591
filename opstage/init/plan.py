"""Plans: one initialiser for every parameter, checked against the parameters' shapes before any values are made.

A random initialiser without a seed gets one here: a hash of a base seed and the parameter's path. So no two parameters
share a stream, and adding a parameter does not change the values of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from ..ops import trees
from ..ops.errors import UsageError
from ..ops.hints import Renamed
from ..ops.splitmix import draw_site, require_seed, splitmix64
from ..ops.tied_parameters import Places
from ..ops.types import DType
from .schemes import Array, Elementary, Flat, Initialiser, checked_shape


def parameter_seed(seed: int, path: str) -> int:
    """Return the seed of the parameter at dotted `path` under the base `seed`: splitmix64(splitmix64(seed) + hash of
    path).

    Raises:
        UsageError: another seed than an integer >= 0.
    """
    return splitmix64(splitmix64(require_seed(seed)) + draw_site(((path, 0),), 0))


def keys(seed: int, tree: Any) -> Any:
    """Return a tree like `tree` with every parameter's `parameter_seed`, by its first place.

    Raises:
        UsageError: another seed than an integer >= 0.
    """
    places = Places.of(tree)
    return places.tree([parameter_seed(seed, name) for name in places.names])


@trees.leaf
@final
@dataclass(frozen=True, slots=True)
class Declaration:
    """A parameter that does not exist yet: its shape and its initialiser. A tree of these is a model without memory.

    One Declaration in two places declares two parameters, with separate values. Layers share a weight if they read it
    from the same place, or if the same `Param` is in both places.

    Raises:
        UsageError: a shape of other than integers >= 0.
    """

    shape: tuple[int, ...]
    initialiser: Initialiser

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", checked_shape(self.shape))
        _check_initialiser(self.initialiser, "a declaration")


@final
@dataclass(frozen=True, slots=True)
class Placement:
    """The initialisation of one parameter: its path, its shape and a seeded elementary initialiser for that shape."""

    path: str
    shape: tuple[int, ...]
    initialiser: Elementary

    def materialise(self, dtype: str | DType = "float32") -> Array:
        """Return the parameter's initial value as a new array."""
        return self.initialiser.materialise(self.shape, dtype)


def place(
    initialiser: Initialiser, shape: tuple[int, ...], path: str, *, seed: int = 0, shown: str | None = None
) -> Placement:
    """Return the placement of the parameter at `path`, which messages call `shown`. Raises UsageError if the shape does
    not fit."""
    try:
        elementary = initialiser.seeded(parameter_seed(seed, path)).for_shape(shape)
    except UsageError as error:
        raise UsageError(f"parameter {trees.show_path(path if shown is None else shown)}: {error}") from error
    return Placement(path, shape, elementary)


class Plan(Renamed):
    """One initialiser for every parameter: a tree like the parameters', or a flat list.

    A list goes by the order in which the parameters were written: `[uniform(), zeros]` for `{"w": …, "b": …}` gives the
    uniform values to w. A `Param` in several places is one parameter, and its places must have the same initialiser.

    Raises `UsageError` for an entry that is not an initialiser.

    Raises:
        UsageError: something other than an initialiser.
    """

    __slots__ = ("_leaves", "_ordered", "initialisers")

    def __init__(self, initialisers: Any):
        self.initialisers = initialisers
        leaves, structure = trees.flatten(initialisers)
        for path, item in zip(trees.structure_paths(structure), leaves, strict=True):
            _check_initialiser(item, f"the plan at {trees.show_path(path)}")
        self._ordered = type(initialisers) in (list, tuple) and len(leaves) == len(initialisers)
        self._leaves = leaves

    @classmethod
    def of(cls, declarations: Any) -> Plan:
        """Return the plan in a tree of `Declaration`; a `UsageError` where it contains anything else."""
        leaves, structure = trees.flatten(declarations)
        for path, item in zip(trees.structure_paths(structure), leaves, strict=True):
            if not isinstance(item, Declaration):
                raise UsageError(f"parameter {trees.show_path(path)} is not declared: it is {item!r}, no Declaration")
        return cls(trees.unflatten(structure, [declaration.initialiser for declaration in leaves]))

    def placements(self, parameters: Any, *, seed: int = 0) -> list[Placement]:
        """Return the placement of each parameter, in the order of their paths. Everything is checked and nothing is
        changed.

        `parameters` is a tree of anything that has a `shape`: arrays, declarations, parameters. Raises `UsageError`,
        naming the parameter, where lengths or structures differ, an initialiser does not fit its parameter, or the
        places of one parameter have different initialisers.
        """
        leaves, structure = trees.flatten(parameters)
        places = Places.among(structure, leaves)
        shapes = [_require_shape(item, name) for item, name in zip(leaves, places.paths, strict=True)]
        if self._ordered:
            initialisers = self._for_every_place(places, shapes)
        else:
            initialisers = trees.align(structure, self.initialisers, "the parameters", "the plan")
        made = []
        for path, name, shape, initialiser in zip(places.paths, places.spread(places.names), shapes, initialisers):
            made.append(place(initialiser, shape, name, seed=seed, shown=path))
        places.agreed([placement.initialiser for placement in made], "initialisers", _alike)
        return places.first(made)

    def materialise(self, parameters: Any, *, dtype: str | DType = "float32", seed: int = 0) -> Any:
        """Return a tree like `parameters` of new arrays in `dtype`, one for each parameter."""
        arrays = [placement.materialise(dtype) for placement in self.placements(parameters, seed=seed)]
        return Places.of(parameters).arrays(arrays)

    def _for_every_place(self, places: Places, every: list[tuple[int, ...]]) -> list[Initialiser]:
        """Return the initialisers of a flat list that has one for every parameter or one for every place."""
        given = places.columns(self._leaves)
        if given is not None:
            return list(given)
        names, shapes = [places.paths[place] for place in places.written], [every[place] for place in places.written]
        planned = len(self._leaves)
        counts = f"the plan has {planned} initialisers for {len(names)} parameters"
        if planned < len(names):
            raise UsageError(f"{counts}: parameter {trees.show_path(names[planned])} {shapes[planned]} has none")
        raise UsageError(f"{counts}: initialiser {len(names)}, {self._leaves[len(names)]}, lacks a parameter")


def build(declarations: Any, *, dtype: str | DType = "float32", seed: int = 0) -> Any:
    """Return a tree like `declarations` of new arrays: the initial values of the declared parameters.

    Raises:
        UsageError: a leaf that is not a Declaration; no such dtype; another seed than an integer >= 0.
    """
    return Plan.of(declarations).materialise(declarations, dtype=dtype, seed=seed)


def _require_shape(item: Any, path: str) -> tuple[int, ...]:
    shape = getattr(item, "shape", None)
    if not isinstance(shape, tuple):
        raise UsageError(
            f"parameter {trees.show_path(path)} has no shape: it is {item!r}; give an array or a Declaration"
        )
    return checked_shape(shape)


def _alike(a: Elementary, b: Elementary) -> bool:
    """Return whether two schemes give a parameter the same values."""
    if isinstance(a, Flat) and isinstance(b, Flat):
        return bool((a.values.reshape(-1) == b.values.reshape(-1)).all())
    return a is b or a == b


def _check_initialiser(item: Any, where: str) -> None:
    if not isinstance(item, Initialiser):
        raise UsageError(f"{where} holds {item!r}, which is not an initialiser; the module opstage.init has them")
