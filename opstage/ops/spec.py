"""`Spec`: a symbolic shape, dtype and constraints, as written by users: `Spec("B T 768", where=["T <= 1024"])`."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optree

from .arrays import as_numpy, is_table
from .dims import Dim, DimExpr, DimScope
from .dims.notation import LARGEST_SIZE, parse_expression, parse_relations, split_outside
from .errors import SourceLine, UsageError, nearest, user_frame
from .trees import flatten, leaf, lists_as_arrays, unflatten
from .types import DType, TensorType, as_dtype, dtype_name, is_float, require_shape
from .untrusted import brief

_LONGEST_SHAPE = 20_000
_MOST_AXES = 64  # of a NumPy array


@leaf
@dataclass(frozen=True)
class Spec:
    """The declared shape and dtype of a tensor.

    shape   dims separated by spaces: integers, names, and expressions of them, which only have spaces in parentheses
            (`"B T 3*H D//2 min(T, 8)"`); or a tuple of ints, names and dims. A name means the same size everywhere
            in one check, and is at least 1.
    dtype   None is the program's float dtype
    where   constraints on the names: `"T <= 1024"`, `"D % H == 0"`
    range   (low, high): bounds of all elements, inclusive and finite elements only; used by `opstage check --ranges`,
            and data are checked against it

    Raises:
        UsageError: a shape or dtype that there is not; dims that cannot be read, where it is used.
    """

    shape: str | tuple[Any, ...]
    dtype: str | None = None
    where: Sequence[str] = ()
    range: tuple[float, float] | None = None
    source: SourceLine | None = field(default=None, init=False, repr=False, compare=False)
    """The source line, if it names dims."""
    initial: tuple[float, float] | None = field(default=None, init=False, repr=False, compare=False)
    """For values with an initial value, such as declared parameters: the range of that value."""
    lasting: tuple[float, float] | None = field(default=None, init=False, repr=False, compare=False)
    """For values that the trainer passes to every step: the range of that value in all steps."""

    def __post_init__(self) -> None:
        if not isinstance(self.shape, (str, tuple, list)):
            raise UsageError(f"a Spec's shape is text like 'B 3 32' or a tuple, not {brief(self.shape)}")
        if self.dtype is not None:
            object.__setattr__(self, "dtype", dtype_name(as_dtype(self.dtype)))
        if isinstance(self.where, str):
            object.__setattr__(self, "where", (self.where,))
        if self.range is not None:
            object.__setattr__(self, "range", _ends(self))
        if isinstance(self.shape, str) or self.where:
            object.__setattr__(self, "source", user_frame())

    def __str__(self) -> str:
        shape = self.shape if isinstance(self.shape, str) else " ".join(map(str, self.shape))
        extras = "" if self.dtype is None else f", dtype={self.dtype!r}"
        extras += f", where={list(self.where)!r}" if self.where else ""
        extras += "" if self.range is None else f", range=({self.range[0]:g}, {self.range[1]:g})"
        return f'Spec("{shape}"{extras})'

    def changed(self, **fields: Any) -> Spec:
        """Return a copy with other fields and the same source line."""
        made = replace(self, **fields)
        object.__setattr__(made, "source", self.source)
        return made.beginning(self.initial).keeping(self.lasting)

    def beginning(self, ends: tuple[float, float] | None) -> Spec:
        """Set the range of the tensor's initial value on this Spec, and return the Spec."""
        object.__setattr__(self, "initial", ends)
        return self

    def keeping(self, ends: tuple[float, float] | None) -> Spec:
        """Set the range of the tensor in every step on this Spec, and return the Spec."""
        object.__setattr__(self, "lasting", ends)
        return self

    @property
    def entries(self) -> tuple[Any, ...]:
        """The dims: ints, names and expressions as text, and dims. Raises `UsageError` for too many."""
        if isinstance(self.shape, str) and len(self.shape) > _LONGEST_SHAPE:
            raise UsageError(f"the shape {brief(self.shape)} has {len(self.shape):,} characters, too many for a shape")
        entries = tuple(split_outside(self.shape, " \t\n") if isinstance(self.shape, str) else self.shape)
        if len(entries) > _MOST_AXES:
            raise UsageError(f"the shape {brief(self.shape)} has {len(entries):,} axes; no array has more than 64")
        return entries

    def bind(self, scope: DimScope, default: DType) -> TensorType:
        """Return the type of this Spec, with its names in `scope`; `declare` adds its constraints."""
        shape = tuple(_dim(scope, entry, self) for entry in self.entries)
        require_shape(shape)
        dtype = default if self.dtype is None else as_dtype(self.dtype)
        # a program computes in one float dtype: all floats are cast to it on entry
        return TensorType(shape, default if is_float(dtype) else dtype)

    def declare(self, scope: DimScope) -> None:
        """Declare the constraints in `scope`, after all Specs are bound: one may use another's names."""
        for constraint in self.where:
            scope.declare(constraint)


def _ends(spec: Spec) -> tuple[float, float]:
    """Return the range of a Spec, validated."""
    try:
        low, high = spec.range  # type: ignore[misc]  # unvalidated
        ends = float(low), float(high)
        proper = ends[0] <= ends[1] and ends[0] < math.inf and ends[1] > -math.inf
    except (TypeError, ValueError, OverflowError):
        proper = False
    if not proper:
        raise UsageError(f"a Spec's range is (low, high) with low <= high, not {brief(spec.range)}")
    if spec.dtype == "bool":
        raise UsageError(f"a mask is True or False and has no range, but a Spec of dtype bool has {brief(spec.range)}")
    return ends


def _dim(scope: DimScope, entry: Any, spec: Spec) -> Dim:
    if isinstance(entry, str):
        return scope.parse(entry)
    if isinstance(entry, DimExpr):
        return scope.parse(str(entry))
    if isinstance(entry, (int, np.integer)) and not isinstance(entry, bool) and 0 <= entry <= LARGEST_SIZE:
        return int(entry)
    raise UsageError(
        f"{brief(str(spec))}: a dim is an int that is at least 0 and below 2**63, a name, or an expression of names, "
        f"not {brief(entry)}"
    )


def as_specs(tree: Any) -> Any:
    """Convert a pytree of Specs, arrays, numbers, declared parameters, and tuples of sizes (shapes) to a pytree of
    Specs."""
    flatten(tree)  # registers dataclasses with optree
    return optree.tree_map(_as_spec, tree, is_leaf=_is_shape, namespace="opstage")


def lists_by_specs(specs: Any, tree: Any) -> Any:
    """Convert lists of numbers to arrays where there is a single Spec.

    Where Specs form a list, a list stays. Integers become floats where a float is expected. Raises UsageError for rows
    of different lengths.
    """
    if isinstance(specs, Spec):
        made = lists_as_arrays(tree) if type(tree) is list else tree
        if made is tree or not isinstance(made, np.ndarray):
            return tree
        whole = made.dtype.kind in "iu" and is_float(as_dtype(specs.dtype or "float32"))
        return made.astype(np.float64) if whole else made
    kind = type(tree)
    if kind is not type(specs) or kind not in (list, tuple, dict) or len(tree) != len(specs):
        return tree
    if kind is dict:
        return {key: lists_by_specs(specs[key], value) if key in specs else value for key, value in tree.items()}
    return kind(map(lists_by_specs, specs, tree))


def shapes_as_specs(tree: Any) -> Any:
    """Replace tuples of sizes by Specs and keep all other leaves, unlike `as_specs`, so that their identity is
    preserved."""
    flatten(tree)  # registers dataclasses with optree
    return optree.tree_map(lambda x: Spec(x) if _is_shape(x) else x, tree, is_leaf=_is_shape, namespace="opstage")


def _is_shape(node: Any) -> bool:
    return isinstance(node, tuple) and not hasattr(node, "_fields") and all(isinstance(d, (int, DimExpr)) for d in node)


def _as_spec(value: Any) -> Spec:
    if isinstance(value, Spec):
        return value
    if isinstance(value, TensorType):
        return Spec(value.shape, dtype_name(value.dtype))
    if _is_shape(value):
        return Spec(value)
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and not hasattr(value, "dtype") and not is_table(value):
        scheme = getattr(value, "initialiser", None)  # a declared parameter's, which is a float of the program's dtype
        return Spec(shape).beginning(None if scheme is None else scheme.range_for(shape))
    typed, readable = shape is not None and dtype is not None, hasattr(value, "__array__")
    if not isinstance(dtype, np.dtype) or (dtype.kind in "OV" and readable):
        try:
            value = as_numpy(value) if readable or not typed else value
        except UsageError:
            if not typed:  # else it has a shape, and no values on the host
                raise
    return Spec(tuple(value.shape), _dtype_of(value.dtype))


def _dtype_of(dtype: Any) -> str | None:
    """Return a Spec's dtype for arrays of `dtype`, of NumPy or another library, which is recognised by name."""
    try:
        known = np.dtype(dtype)
    except TypeError:
        known = np.dtype("V")
    if known.kind == "V":
        name = str(dtype).rpartition(".")[2]
        kinds = {"complex": None, "float": "f", "bool": "?", "int32": "i4", "int": "i8"}
        known = np.dtype(next((kind for part, kind in kinds.items() if part in name), None) or "V")
    if known.kind not in "fiubO":
        raise UsageError(f"a tensor must hold numbers; got dtype {dtype}")
    if known.kind == "u" or (known.kind == "i" and known.itemsize < 4):
        return "int64"
    return None if known.kind in "fO" else dtype_name(known.newbyteorder("="))


def sized(tree: Any, sizes: Mapping[str, int], whose: str = "the program") -> Any:
    """Replace some named dims in a pytree of Specs by numbers; constraints remain for the other names.

    Raises `UsageError` for an unknown name, a size below 0, and a violated constraint; the message calls the Specs
    `whose`.
    """
    specs, structure = flatten(tree)
    scope, seen = DimScope(), dict[str, None]()

    def size(name: str) -> Dim:
        seen[name] = None
        return sizes[name] if name in sizes else scope.dim(name)

    shapes = [tuple(parse_expression(str(entry), size) for entry in spec.entries) for spec in specs]
    at = ", ".join(f"{name}={value}" for name, value in sizes.items())
    for name, value in sizes.items():
        if name not in seen:
            raise UsageError(f"{whose} has no size {name!r}{nearest(name, seen)}; it has {', '.join(seen) or 'none'}")
        if value < 0:
            raise UsageError(f"{whose} at {at}: a size is at least 0")
    result = []
    for spec, shape in zip(specs, shapes):
        where = []
        for constraint in spec.where:
            for left, relation, right in parse_relations(constraint, size):
                if not (isinstance(left, int) and isinstance(right, int)):
                    where.append(f"{left} {relation} {right}")
                elif not _RELATIONS[relation](left, right):
                    raise UsageError(f"{whose} at {at}: {constraint} does not hold")
        result.append(spec.changed(shape=shape, where=where))
    return unflatten(structure, result)


_RELATIONS = {"==": operator.eq, "<=": operator.le, "<": operator.lt, ">=": operator.ge, ">": operator.gt}
