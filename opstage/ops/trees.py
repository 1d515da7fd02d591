"""Trees of parameters: nested dicts, lists, tuples, named tuples and dataclasses, with a dotted path for every leaf.

Flattening is deterministic: dict keys are sorted, everything else keeps its order. None is a tree without leaves. A
dataclass is a node with its fields as children; a field made with `dataclasses.field(metadata={"static": True})` is
part of the structure instead, and must be hashable. Decorate a dataclass with `leaf` to make it a leaf; arrays of other
libraries that are dataclasses are leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from fractions import Fraction
from itertools import chain
from operator import attrgetter
from typing import Any, NoReturn, TypeAlias, TypeVar, final

import numpy as np
import optree

from ..threads import make_lock
from .errors import ProgramError, UsageError, a_type, nearest
from .infix import Infix

# Lists of scalar tensors ----------------------------------------------------------------------------------------------

# A list of numbers becomes an array before a program sees it; a list of arrays without axes, or of such Specs, is a
# tree. For a Python list, `x + x` and `x * 2` make longer lists; for a tensor they compute other numbers. So the list
# that a program gets has no operators: ambiguous uses raise an error.

_EVERYWHERE: Any = vars(optree.registry)["__GLOBAL_NAMESPACE"]

apart = object()
"""Another object each time that `Scalars` are flattened: only where it has changed does a tree contain them."""

_CURE = "a list of scalar arrays is a tree of them; pass np.asarray(…) of it for one tensor"

_OPERATORS = {
    **{
        f"__{way}{name}__": symbol
        for name, symbol in (("add", "+"), ("sub", "-"), ("mul", "*"), ("truediv", "/"), ("matmul", "@"), ("pow", "**"))
        for way in ("", "r", "i")
    },
    "__lt__": "<",
    "__le__": "<=",
    "__gt__": ">",
    "__ge__": ">=",
    "__neg__": "-",
    "__abs__": "abs",
}


def _refusing(symbol: str) -> Callable[..., Any]:
    def method(self: Any, *_: Any) -> NoReturn:
        raise ProgramError(
            f"{symbol} of a list of {len(self)} would not be what it is of a tensor: {_CURE}, or write [*x, *y] for a "
            "longer list"
        )

    return method


@final
class Scalars(list[Any]):
    """A list of scalar refs, or of such lists, as passed to a program: a list without operators."""

    __slots__ = ()

    for _name, _symbol in _OPERATORS.items():
        locals()[_name] = _refusing(_symbol)
    del _name, _symbol

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a list does not have {name}: {_CURE}", name=name, obj=self)

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        return list, (list(self),)


def _entries(scalars: Collection[Any]) -> tuple[list[Any], None]:
    global apart
    apart = object()
    return list(scalars), None


# optree treats it as a tree, like any list, and not as a leaf.
optree.register_pytree_node(Scalars, _entries, lambda _, entries: list(entries), namespace=_EVERYWHERE)


def all_scalars(tree: Any) -> bool:
    """Return whether a tree of refs is a nonempty list of scalars or of such lists."""
    return type(tree) in (list, Scalars) and bool(tree) and all(map(_is_scalar, tree))


def _is_scalar(entry: Any) -> bool:
    return isinstance(entry, Infix) and len(entry.shape) == 0 or all_scalars(entry)


def as_scalars(tree: Any) -> Any:
    """Convert to `Scalars` a list for which `all_scalars` is True; return anything else unchanged."""
    if not all_scalars(tree):
        return tree
    return Scalars(map(as_scalars, tree))


def as_list(tree: Any) -> Any:
    """Convert `Scalars` to a list; return anything else unchanged."""
    return [as_list(entry) for entry in tree] if type(tree) is Scalars else tree


def no_ref(value: Any, cure: str = "make one with ops.const(…)", op: str = "an op") -> ProgramError:
    """Return the error for an argument of an op that is not a ref."""
    return ProgramError(f"{op} got {describe_kind(value)} where it needs a ref; {cure}{if_list(value)}")


def describe_kind(value: Any) -> str:
    return "a list" if type(value) is Scalars else a_type(value)


def if_list(value: Any) -> str:
    """Return the continuation of a message about a non-tensor, if the value is a list."""
    return f"; {_CURE}" if isinstance(value, (list, tuple)) else ""


Structure: TypeAlias = "optree.PyTreeSpec"
Class = TypeVar("Class", bound=type)

_NAMESPACE = "opstage"
_LEAF_MARK = "__opstage_leaf__"
_known_leaf_types: set[type] = set()
_registered: set[type] = set()
_registration = make_lock()


def leaf(cls: Class) -> Class:
    """Mark a dataclass and its subclasses as leaves."""
    setattr(cls, _LEAF_MARK, True)
    return cls


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """Return the leaves of `tree` in order, and the structure for `unflatten`."""
    before = apart
    while True:
        leaves, structure = optree.tree_flatten(tree, namespace=_NAMESPACE)
        if not _known_leaf_types.issuperset(map(type, leaves)) and _register_dataclasses(leaves):
            continue
        if apart is before:
            return leaves, structure
        # a list that a program got has the structure of the list that it was
        tree = optree.tree_map(as_list, tree, is_leaf=_is_scalars, namespace=_NAMESPACE)
        before = apart


def _is_scalars(tree: Any) -> bool:
    return type(tree) is Scalars


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return the tree of `structure` with `leaves`. Raises UsageError for a wrong number of leaves.

    A dataclass is rebuilt without its `__init__`: a tree of shapes or gradients need not pass checks made for values.
    """
    leaves = list(leaves)
    if len(leaves) != structure.num_leaves:
        raise UsageError(f"the structure has {structure.num_leaves} leaves but {len(leaves)} were given")
    return structure.unflatten(leaves)


def map_leaves(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return the tree of `function(leaf, other_leaf, …)`. Raises UsageError unless all trees have the same
    structure."""
    leaves, structure = flatten(tree)
    columns = [align(structure, other, "the first tree", f"tree {n}") for n, other in enumerate(others, start=2)]
    return unflatten(structure, map(function, leaves, *columns))


def paths(tree: Any) -> list[str]:
    """Return the dotted path of every leaf, in order: `blocks.3.mlp.w2`; empty for a tree that is itself a leaf."""
    return structure_paths(flatten(tree)[1])


def structure_paths(structure: Structure) -> list[str]:
    """Return the dotted path of every leaf of `structure`. Raises `UsageError` if two leaves would share one."""
    names = [".".join(_entry_name(entry) for entry in accessor) for accessor in structure.accessors()]
    if len(set(names)) != len(names):
        twice = next(name for n, name in enumerate(names) if name in names[:n])
        raise UsageError(
            f"two leaves have the path {twice!r}: a key contains a dot, or a number and its string are both keys"
        )
    return names


def written_order(structure: Structure) -> list[int]:
    """Return the numbers of the leaves in the order in which users wrote the tree: dict entries as they were inserted.

    A flat list that stands for a tree is paired with its leaves in this order.
    """

    def walk(node: Any) -> Iterable[int]:
        if type(node) is int:
            return [node]
        below = optree.tree_leaves(node, is_leaf=lambda each: each is not node, namespace=_NAMESPACE)
        return chain.from_iterable(map(walk, node.values() if isinstance(node, dict) else below))

    return list(walk(structure.unflatten(range(structure.num_leaves))))


def output_names(structure: Structure) -> list[str]:
    """Return the names of the tensors in a program's result: `output`, or `output.0` in a tree."""
    return [f"output.{path}" if path else "output" for path in structure_paths(structure)]


def align(expected: Structure, tree: Any, expected_name: str, name: str) -> list[Any]:
    """Return the leaves of `tree` if it has the structure `expected`. Otherwise raises UsageError with the first
    difference."""
    leaves, structure = flatten(tree)
    if structure != expected:
        arrays, with_arrays = flatten(lists_as_arrays(tree))
        if with_arrays == expected:
            return arrays
        difference = first_difference(expected, structure)
        raise UsageError(f"{name} does not have the structure of {expected_name}: {difference}")
    return leaves


def leaves_of_prefix(name: str, prefix: Any, tree: Any, is_leaf: Callable[[Any], bool]) -> list[Any]:
    """Return, for every leaf of `tree`, the leaf of `prefix` at or above its position.

    `prefix` is one value for the whole tree, or a tree that stops anywhere above the leaves of `tree`. Raises
    UsageError for a prefix of another structure, or with leaves that `is_leaf` refuses.
    """
    shown = optree.tree_map(lambda _: "…", tree, none_is_leaf=True, namespace=_NAMESPACE)  # errors show no data
    try:
        found = optree.broadcast_prefix(prefix, shown, none_is_leaf=True, namespace=_NAMESPACE)
    except ValueError as error:
        raise UsageError(f"{name} is not built like the tree that it describes: {error}") from None
    for value in found:
        if not is_leaf(value):
            raise UsageError(f"{name} has {value!r}, expected an int or None")
    leaves = optree.tree_leaves(tree, none_is_leaf=True, namespace=_NAMESPACE)
    return [value for value, leaf in zip(found, leaves) if leaf is not None]


def lists_as_arrays(tree: Any) -> Any:
    """Replace every list of numbers, or nested lists, by an array, since that is how tensors are written.

    Tuples, dicts, dataclasses and other lists are kept. Raises UsageError for rows of different lengths.
    """
    kind = type(tree)
    if kind is list:
        if not _is_table(tree):
            return [lists_as_arrays(entry) for entry in tree]
        try:
            return _table(tree)
        except ValueError:
            raise UsageError(
                "a list of numbers stands for a tensor, but this one has rows of different lengths; a tuple of them is "
                "a tree"
            ) from None
    if kind is tuple:
        return tuple([lists_as_arrays(entry) for entry in tree])
    if kind is dict:
        return {name: lists_as_arrays(entry) for name, entry in tree.items()}
    return tree


def _is_table(entries: list[Any]) -> bool:
    return bool(entries) and all(
        _is_table(entry) if type(entry) is list else isinstance(entry, NUMBERS) for entry in entries
    )


def _table(rows: list[Any]) -> np.ndarray:
    """Return the array of rows. NumPy converts integers beyond int64 to floats; here they stay integers, which
    interpreters reject."""
    made = np.array(rows)
    if made.dtype.kind == "f" and (np.abs(made) >= 2.0**63).any():
        exact = np.array(rows, object)
        if any(isinstance(number, int) and abs(number) >= 2**63 for number in exact.flat):
            return exact
    return made


NUMBERS = (int, float, Fraction, np.generic)
"""The types of plain numbers."""


def with_scalars(tree: Any) -> Any:
    """Convert lists of scalars in a tree of refs to `Scalars`, so that they are not silently mistaken for tensors."""
    if all(map(_shape, optree.tree_leaves(tree, namespace=_NAMESPACE))):
        return tree  # a quick check: there are no scalars
    return optree.tree_map(as_scalars, tree, is_leaf=all_scalars, namespace=_NAMESPACE)


_shape = attrgetter("shape")


def first_difference(expected: Structure, actual: Structure) -> str | None:
    """Return the first difference of two structures, depth first, as a sentence that begins with its path; None if
    equal."""
    return None if expected == actual else _difference(expected, actual, ())


def show_path(path: str) -> str:
    """Format `path` for a message; the empty path is called `the root`."""
    return path or "the root"


def _register_dataclasses(leaves: Sequence[Any]) -> bool:
    """Register the dataclasses among `leaves` as nodes; return whether there were any, so that flattening must
    continue."""
    found = False
    for item in leaves:
        cls = type(item)
        if cls in _known_leaf_types:
            continue
        if dataclasses.is_dataclass(cls) and not (hasattr(cls, _LEAF_MARK) or hasattr(cls, "__array__")):
            _register(cls)
            found = True
        else:
            _known_leaf_types.add(cls)
    return found


def _register(cls: type) -> None:
    fields = dataclasses.fields(cls)
    children = tuple(field.name for field in fields if not field.metadata.get("static", False))
    static = tuple(field.name for field in fields if field.metadata.get("static", False))

    def take_apart(value: Any) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[str, ...]]:
        metadata = tuple(getattr(value, name) for name in static)
        return tuple(getattr(value, name) for name in children), metadata, children

    def put_together(metadata: Any, values: Iterable[Any]) -> Any:
        made: Any = object.__new__(cls)
        for name, value in (*zip(children, values, strict=True), *zip(static, metadata, strict=True)):
            object.__setattr__(made, name, value)  # frozen dataclasses refuse plain assignment
        return made

    with _registration:
        if cls not in _registered:
            optree.register_pytree_node(
                cls, take_apart, put_together, path_entry_type=optree.DataclassEntry, namespace=_NAMESPACE
            )
            _registered.add(cls)


def _entry_name(entry: optree.PyTreeEntry) -> str:
    return str(entry.field) if isinstance(entry, optree.NamedTupleEntry) else str(entry.entry)


def _difference(expected: Structure, actual: Structure, path: tuple[str, ...]) -> str:
    at = show_path(".".join(path))
    if expected.kind != actual.kind or expected.type != actual.type:
        return f"{at} is {_describe(actual)} where {_describe(expected)} is expected"
    expected_children = _children(expected)
    actual_children = _children(actual)
    for name in expected_children:
        if name not in actual_children:
            extra = [other for other in actual_children if other not in expected_children]
            return f"{show_path('.'.join((*path, name)))} is missing{nearest(name, extra)}"
    for name in actual_children:
        if name not in expected_children:
            return f"{show_path('.'.join((*path, name)))} is not expected there{nearest(name, expected_children)}"
    for name, child in expected_children.items():
        if child != actual_children[name]:
            return _difference(child, actual_children[name], (*path, name))
    return f"{at} differs in its static fields"


def _children(structure: Structure) -> dict[str, Structure]:
    one_level = structure.one_level()
    names = [_entry_name(accessor[0]) for accessor in one_level.accessors()] if one_level is not None else []
    return dict(zip(names, structure.children(), strict=True))


def _describe(structure: Structure) -> str:
    if structure.kind == optree.PyTreeKind.LEAF:
        return "a single leaf"
    if structure.kind == optree.PyTreeKind.NONE:
        return "None"
    name = getattr(structure.type, "__name__", str(structure.type))
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"
