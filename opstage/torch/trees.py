"""PyTorch's trees of inputs and outputs as dicts, lists and tuples, with numbers or values as leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from ..ops.errors import UnsupportedError, UsageError
from ..ops.untrusted import a_type


@final
@dataclass(frozen=True)
class TreeLeaf:
    """A leaf of a tree, with its index in PyTorch's order."""

    at: int


def template_of(spec: Any, count: Iterator[int]) -> Any:
    """Return a tree of leaves for PyTorch's TreeSpec; other container classes become dicts or tuples."""
    if spec.is_leaf():
        return TreeLeaf(next(count))
    children = [template_of(child, count) for child in spec.children()]
    kind = spec.type
    if kind is list:
        return children
    if isinstance(kind, type) and issubclass(kind, dict):
        return dict(zip(_keys(spec.context, len(children)), children))
    if isinstance(spec.context, type) and hasattr(spec.context, "_fields"):
        return spec.context(*children)
    if kind is tuple:
        return tuple(children)
    names = _keys(spec.context, len(children))
    return dict(zip(names, children)) if names else tuple(children)


def _keys(context: Any, count: int) -> list[str]:
    """Return the names of a node's children from its context, or an empty list."""
    for found in (context, *(context if isinstance(context, (list, tuple)) else ())):
        if (
            isinstance(found, (list, tuple))
            and len(found) == count
            and all(isinstance(key, (str, int)) for key in found)
        ):
            return [str(key) for key in found]
    return []


def filled(template: Any, value: Callable[[int], Any]) -> Any:
    """Return the tree with values at its leaves."""
    if isinstance(template, TreeLeaf):
        return value(template.at)
    if isinstance(template, dict):
        return {key: filled(child, value) for key, child in template.items()}
    if isinstance(template, list):
        return [filled(child, value) for child in template]
    if hasattr(template, "_fields"):
        return type(template)(*(filled(child, value) for child in template))
    return tuple(filled(child, value) for child in template)


def leaves(template: Any, tree: Any, name: str) -> Iterator[tuple[int, Any]]:
    """Yield the index and value of each leaf of a tree of that structure. Raises UsageError for another structure."""
    if isinstance(template, TreeLeaf):
        yield template.at, tree
        return
    if isinstance(template, dict):
        if not isinstance(tree, Mapping) or set(tree) != set(template):
            expected = f"a dict of {', '.join(map(str, template))}"
            raise UsageError(f"{name} must be {expected}, as in the module that was exported, but is {_kind(tree)}")
        for key, child in template.items():
            yield from leaves(child, tree[key], f"{name}.{key}")
        return
    if not isinstance(tree, Sequence) or isinstance(tree, str) or len(tree) != len(template):
        expected = f"{a_type(template)} of {len(template)}"
        raise UsageError(f"{name} must be {expected}, as in the module that was exported, but is {_kind(tree)}")
    for i, (child, value) in enumerate(zip(template, tree)):
        yield from leaves(child, value, f"{name}[{i}]")


def _kind(tree: Any) -> str:
    if isinstance(tree, Mapping):
        return f"a dict of {', '.join(map(str, tree)) or 'nothing'}"
    if isinstance(tree, (list, tuple)):
        return f"{a_type(tree)} of {len(tree)}"
    return a_type(tree)


def leaf_names(template: Any, name: str) -> Iterator[tuple[int, str]]:
    """Yield a name for each leaf from its path: hidden_0."""
    if isinstance(template, TreeLeaf):
        yield template.at, name
        return
    fields = getattr(template, "_fields", range(len(template)))
    pairs = template.items() if isinstance(template, dict) else zip(fields, template)
    for key, child in pairs:
        yield from leaf_names(child, f"{name}_{key}" if name else str(key))


def arguments_of(in_spec: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a template for each argument of a module's forward, by name; leaves are numbered across all of them."""
    positional, keywords = in_spec.children()
    count = iter(range(in_spec.num_leaves))
    templates = [template_of(child, count) for child in positional.children()]
    templates += [template_of(child, count) for child in keywords.children()]
    keys = [*names[: positional.num_children], *(keywords.context or ())]
    if len(keys) != len(templates):
        keys = [f"x{i}" for i in range(positional.num_children)] + list(keywords.context or ())
    if len(set(keys)) != len(keys):
        raise UnsupportedError(f"two arguments are called alike: {', '.join(map(str, keys))}")
    return dict(zip(map(str, keys), templates))
