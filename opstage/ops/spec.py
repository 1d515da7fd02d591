"""`Spec`: a symbolic shape, dtype and constraints, as written by users: `Spec("B T 768", where=["T <= 1024"])`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeAlias, TypeVar, final

import numpy as np
import optree

from .array_conversion import as_numpy, is_table
from .dims import Dim, DimExpr, DimScope
from .dims.scope import LARGEST_SIZE, parse_expression, parse_relations, split_outside
from .errors import SourceLine, UsageError, brief, nearest, user_frame
from .trees import flatten, leaf, lists_as_arrays, unflatten
from .types import DTYPES, DType, TensorType, as_dtype, dtype_name, is_float, require_shape

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
        """Return the dims: ints, names and expressions as text, and dims. Raises `UsageError` for too many."""
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
        raise UsageError(f"a Spec of dtype bool: expected no range, got {brief(spec.range)}. A mask is True or False")
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
    return Spec(tuple(value.shape), _array_dtype(value.dtype))


def _array_dtype(dtype: Any) -> str | None:
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
            raise UsageError(
                f"{whose} does not have a size {name!r}{nearest(name, seen)}; it has {', '.join(seen) or 'none'}"
            )
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


# Claims: statements about what a program's outputs read, to be proved for every allowed size --------------------------

# opstage.check(program, x, claims=[Causal("T"), Independent("B")])
# @opstage.shapes("x: B T 64", claims=["causal:T", "independent:B"])


@final
@dataclass(frozen=True)
class Causal:
    """An output at index t of the named dim `axis` only reads inputs at indices s <= t."""

    axis: str
    rule: ClassVar = "causal"

    def __str__(self) -> str:
        return f"causal:{self.axis}"

    def breaks(self, source: int, target: int) -> bool:
        """Return whether the claim forbids the output at `target` to read the input at `source`."""
        return source > target


@final
@dataclass(frozen=True)
class Independent:
    """An output at index b of the named dim `axis` only reads inputs at the same index."""

    axis: str
    rule: ClassVar = "independent"

    def __str__(self) -> str:
        return f"independent:{self.axis}"

    def breaks(self, source: int, target: int) -> bool:
        """Return whether the claim forbids the output at `target` to read the input at `source`."""
        return source != target


@final
@dataclass(frozen=True)
class Window:
    """An output at index t of the named dim `axis` only reads inputs at indices from t - size to t + size.

    Raises:
        UsageError: a size that is not an integer >= 0.
    """

    axis: str
    size: int
    rule: ClassVar = "window"

    def __post_init__(self) -> None:
        if type(self.size) is not int or self.size < 0:
            raise UsageError(f"the size of a window is an int that is at least 0, not {self.size!r}")

    def __str__(self) -> str:
        return f"window:{self.axis}:{self.size}"

    def breaks(self, source: int, target: int) -> bool:
        """Return whether the claim forbids the output at `target` to read the input at `source`."""
        return abs(source - target) > self.size


@final
@dataclass(frozen=True)
class Uses:
    """At least one output depends on the input `name`, a tensor or a tree: `x`, `params.bias`."""

    name: str
    rule: ClassVar = "uses"

    def __str__(self) -> str:
        return f"uses:{self.name}"


@final
@dataclass(frozen=True)
class Ignores:
    """No output depends on the input `name`, a tensor or a tree."""

    name: str
    rule: ClassVar = "ignores"

    def __str__(self) -> str:
        return f"ignores:{self.name}"


AlongAxis: TypeAlias = "Causal | Independent | Window"
Claim: TypeAlias = "Causal | Independent | Window | Uses | Ignores"

_KINDS: dict[str, Callable[[str], Claim]] = {
    "causal": Causal,
    "independent": Independent,
    "uses": Uses,
    "ignores": Ignores,
}
EXPECTED = "causal:T, independent:B, window:T:3, uses:x or ignores:mask"


def read_claims(given: Iterable[Claim | str] | Claim | str) -> tuple[Claim, ...]:
    """Parse claims, or texts such as `causal:T,independent:B`. Raises UsageError for anything else."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = (given,)
    found: dict[Claim, None] = {}
    for each in given:
        if isinstance(each, str):
            found |= dict.fromkeys(_read_claim(text.strip()) for text in each.split(",") if text.strip())
        elif isinstance(each, (Causal, Independent, Window, Uses, Ignores)):
            found[each] = None
        else:
            raise UsageError(f"{each!r} is not a claim; expected one such as {EXPECTED}")
    return tuple(found)


def _read_claim(text: str) -> Claim:
    kind, *rest = [part.strip() for part in text.split(":")]
    if kind == "window" and len(rest) == 2 and rest[0] and rest[1].isdecimal():
        return Window(rest[0], int(rest[1]))
    if kind in _KINDS and len(rest) == 1 and rest[0]:
        return _KINDS[kind](rest[0])
    known: Sequence[str] = (*_KINDS, "window")
    raise UsageError(f"{text!r} is not a claim{'' if kind in known else nearest(kind, known)}; expected {EXPECTED}")


# `shapes`: declares the shapes of a program's arguments in a decorator ------------------------------------------------

# @shapes("x: B 3 32 32", "y: B int64", params=init_params, where=["B <= 512"]) def loss(ops, params, x, y): ...
#
# The function itself is unchanged; `declared(loss)` returns the declaration.

Program = TypeVar("Program", bound=Callable[..., Any])

_MARK = "__opstage_shapes__"


@dataclass(frozen=True)
class Shapes:
    """The declared shapes of a program's arguments.

    inputs   a Spec for each tensor argument by path: `x`, `batch.x`
    params   parameters: a pytree of Specs, arrays or declarations, or a function without arguments that returns one
    state    the program's state, in the same forms; None for a program without state
    claims   statements about what its outputs read
    """

    inputs: Mapping[str, Spec]
    params: Any = None
    state: Any = None
    claims: tuple[Claim, ...] = ()


def shapes(
    *inputs: str, params: Any = None, state: Any = None, where: Sequence[str] = (), claims: Sequence[Claim | str] = ()
) -> Callable[[Program], Program]:
    """Return a decorator that declares the shapes of a program's arguments and leaves the program unchanged.

    inputs   one text per tensor, `NAME: DIMS [DTYPE] [in [LOW, HIGH]]`: `"x: B 3 32 32 in [0, 1]"`, `"y: B int64"`,
             `"batch.x: B T"`; dims and range are as in a Spec, the default dtype is the program's float dtype
    params   the parameters, as in `Shapes`
    state    the state of a program that has one, as in `Shapes`
    where    constraints on the names: `"T <= 1024"`
    claims   statements about what its outputs read in evaluation mode, which a check proves: `"causal:T"`

    `opstage check FILE` checks every decorated function in a file. Raises UsageError for text that cannot be parsed.

    Raises:
        UsageError: declarations that cannot be read.
    """
    read, stated = read_inputs(inputs, where), read_claims(claims)

    def declare(program: Program) -> Program:
        try:
            setattr(program, _MARK, Shapes(read, params, state, stated))
        except (AttributeError, TypeError):
            raise UsageError(f"{program!r} does not accept attributes, so its shapes cannot be declared") from None
        return program

    return declare


def declared(program: Any) -> Shapes | None:
    """Return the shapes that `shapes` declared for a program, or None."""
    found = getattr(program, _MARK, None)
    return found if isinstance(found, Shapes) else None


def read_inputs(texts: Sequence[str], where: Sequence[str] = (), source: SourceLine | None = None) -> dict[str, Spec]:
    """Parse texts `NAME: DIMS [DTYPE] [in [LOW, HIGH]]` into Specs by name, with the constraints on the first one.
    Raises UsageError.

    source   the source line of the texts, if it is not the caller's
    """
    where = (where,) if isinstance(where, str) else tuple(where)
    read: dict[str, Spec] = {}
    for text in texts:
        name, spec = _read(text)
        if name in read:
            raise UsageError(f"{text!r}: {name} is given twice")
        read[name] = spec
    if where:
        if not read:
            raise UsageError(f"where={list(where)!r} needs an input to constrain; name one, such as 'x: B 3 32 32'")
        first = next(iter(read))
        read[first] = read[first].changed(where=where)
    if source is not None:
        for spec in read.values():
            object.__setattr__(spec, "source", source)
    return read


def _read(text: str) -> tuple[str, Spec]:
    example = "expected a name, a colon and dims, such as 'x: B 3 32 32' or 'y: B int64'"
    if not isinstance(text, str):
        raise UsageError(f"{text!r}: {example}")
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if not colon or not name or not all(part.isidentifier() or part.isdecimal() for part in name.split(".")):
        raise UsageError(f"{text!r}: {example}")
    rest, ends = _range_apart(text, rest)
    words = rest.replace(",", " ").split()
    if words and words[0].startswith("(") and words[-1].endswith(")"):  # a shape as Python writes it
        words = " ".join(words)[1:-1].split()
    dtype = words.pop() if words and words[-1] in DTYPES else None
    for word in words[1:] if dtype is None else []:
        if word[-1].isdigit() and word.rstrip("0123456789") in ("float", "int", "uint", "bfloat", "complex"):
            raise UsageError(
                f"{text!r}: unknown dtype {word!r}{nearest(word, DTYPES)}; Opstage has {', '.join(DTYPES)}"
            )
    return name, Spec(" ".join(words), dtype, range=ends)


def _range_apart(text: str, rest: str) -> tuple[str, tuple[float, float] | None]:
    """Split the dims and dtype from the range that follows them."""
    dims, within, ends = rest.rpartition(" in ")
    if not within:
        return rest, None
    try:
        if not (ends.strip().startswith("[") and ends.strip().endswith("]")):
            raise ValueError(ends)
        low, high = map(float, ends.strip()[1:-1].replace(",", " ").split())
    except ValueError:
        raise UsageError(f"{text!r}: a range is two numbers, such as 'x: B 784 in [0, 1]'") from None
    return dims, (low, high)
