"""Whether an imported module still matches its source text, so that a run saves the code that actually ran."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, final

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_NOT_LITERAL = (ValueError, TypeError, SyntaxError, MemoryError, RecursionError)
"""Raised for an expression that is not a literal."""


def is_as_written(module: ModuleType, text: bytes) -> bool:
    """Whether a module matches `text`: its functions with their defaults, and its literal values, also those in
    containers and in fields of dataclasses.

    Values that the code may change later, such as a counter, are ignored, and so is a container that starts empty.
    """
    tree = ast.parse(text)
    codes = frozenset(_codes(compile(text, str(module.__file__), "exec", dont_inherit=True)))
    return _Text(module, codes, _changing(tree)).has(tree.body, vars(module))


@final
@dataclasses.dataclass(frozen=True)
class _Text:
    """The source text of a module, and the names whose values its code may change."""

    module: ModuleType
    codes: frozenset[CodeType]
    changing: frozenset[str]

    def has(self, body: list[ast.stmt], namespace: Mapping[str, Any]) -> bool:
        """Whether the body of a module or class produces the values in `namespace`."""
        for function in (each for value in namespace.values() for each in _functions(value)):
            if self._is_own(function) and function.__code__ not in self.codes:
                return False
        assigned: dict[str, list[ast.AST | None]] = {}
        for node in body:
            if isinstance(node, _DEFINITIONS):
                assigned.setdefault(node.name, []).append(node)
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, ast.Name):
                        assigned.setdefault(target.id, []).append(node.value)
        once = {name: nodes[0] for name, nodes in assigned.items() if len(nodes) == 1}
        return all(self._gives(node, name, namespace) for name, node in once.items() if node is not None)

    def _gives(self, node: ast.AST, name: str, namespace: Mapping[str, Any]) -> bool:
        """Whether a definition or an expression gives `name` the value that it has in `namespace`."""
        if name not in namespace:
            return name in self.changing or namespace is not vars(self.module)
        value = namespace[name]
        if isinstance(node, ast.ClassDef):
            own = isinstance(value, type) and value.__module__ == self.module.__name__
            return not own or self.has(node.body, _of_class(value))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return all(_has_defaults(each, node) for each in _functions(value) if self._is_own(each))
        return name in self.changing or not isinstance(node, ast.expr) or not _differs(node, value)

    def _is_own(self, function: FunctionType) -> bool:
        """Whether a function was defined in the module's text, not imported and not created by `exec`."""
        return function.__module__ == self.module.__name__ and function.__code__.co_filename == self.module.__file__


def _of_class(kind: type) -> dict[str, Any]:
    """The namespace of a class as its body wrote it, without values that a metaclass or descriptor changed."""
    fields, own_fields = getattr(kind, "__dataclass_fields__", {}), vars(kind).get("__annotations__", {})
    defaults = {name: x.default for name, x in fields.items() if name in own_fields and name in vars(kind)}
    own = {name: value for name, value in vars(kind).items() if _functions(value) or isinstance(value, type)}
    if type(kind) is type:
        own |= {name: value for name, value in vars(kind).items() if not hasattr(type(value), "__get__")}
    return own | {name: x for name, x in defaults.items() if x is not dataclasses.MISSING}


def _functions(value: Any) -> list[FunctionType]:
    """The functions that a value of a namespace is or contains."""
    found: list[Any] = [value]
    if isinstance(value, property):
        found = [value.fget, value.fset, value.fdel]
    elif isinstance(value, (staticmethod, classmethod)):
        found = [value.__func__]
    return [each for each in found if isinstance(each, FunctionType)]


def _has_defaults(function: FunctionType, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function has the defaults of a definition; True for a different function, put there by a decorator."""
    if function.__code__.co_name != node.name:
        return True
    positional, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    written = {a.arg: x for a, x in zip(node.args.kwonlyargs, node.args.kw_defaults) if x is not None}
    if len(positional) != len(node.args.defaults) or named.keys() != written.keys():
        return False
    pairs = (*zip(node.args.defaults, positional), *((x, named[name]) for name, x in written.items()))
    return not any(_differs(default, value) for default, value in pairs)


def _differs(node: ast.expr, value: Any) -> bool:
    """Whether an expression evaluates to something other than `value`; False where the text does not determine it."""
    if isinstance(node, ast.Call):
        return _call_differs(node, value)
    if isinstance(node, ast.Dict):
        return bool(node.values) and (type(value) is not dict or _dict_differs(node, value))
    if isinstance(node, (ast.List, ast.Tuple)):
        parts, kind = node.elts, tuple if isinstance(node, ast.Tuple) else list
        if any(isinstance(part, ast.Starred) for part in parts) or (kind is list and not parts):
            return False
        return type(value) is not kind or len(parts) != len(value) or any(map(_differs, parts, value))
    try:
        plain = ast.literal_eval(node)
    except _NOT_LITERAL:
        return False
    return type(plain) is not type(value) or bool(plain != value)


def _dict_differs(node: ast.Dict, value: dict[Any, Any]) -> bool:
    try:
        keys = [ast.literal_eval(key) for key in node.keys if key is not None]
    except _NOT_LITERAL:
        return False
    if len(keys) < len(node.keys):
        return False
    return {*keys} != value.keys() or any(_differs(part, value[key]) for key, part in zip(keys, node.values))


def _call_differs(node: ast.Call, value: Any) -> bool:
    """Whether a call makes a dataclass with different fields; for `field(default=…)`, whether the default differs."""
    called = ast.unparse(node.func).rpartition(".")[2]
    if called == "field":
        return any(each.arg == "default" and _differs(each.value, value) for each in node.keywords)
    kind = type(value)
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is None or not parameters.init or kind.__name__ != called or hasattr(kind, "__post_init__"):
        return False
    if any(isinstance(each, ast.Starred) for each in node.args):
        return False
    fields = [each for each in dataclasses.fields(kind) if each.init]
    written = dict(zip([each.name for each in fields if not each.kw_only], node.args))
    written |= {each.arg: each.value for each in node.keywords if each.arg is not None}
    return any(_differs(written[each.name], getattr(value, each.name)) for each in fields if each.name in written)


def _changing(tree: ast.Module) -> frozenset[str]:
    """Names and attributes whose values the code of a module may change after assigning them."""
    found: set[str] = set()
    for node in ast.walk(tree):
        changed: list[ast.expr] = []
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            found |= {*node.names}
        elif isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
            changed = [node.value]
            # attributes of self are compared with their class
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self":
                found.add(node.attr)
        elif isinstance(node, ast.AugAssign):
            changed = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = [node.func.value]  # a method may change its object
        found |= {each.id for each in changed if isinstance(each, ast.Name)}
    for node in tree.body:  # code that runs at import, except the assignments that are compared
        if isinstance(node, (ast.Assign, ast.AnnAssign, *_DEFINITIONS)):
            continue
        for each in ast.walk(node):
            given = each.args if isinstance(each, ast.Call) else []
            found |= {x.id for x in (*given, each) if isinstance(x, ast.Name) and (x in given or not _is_read(x))}
    return frozenset(found)


def _is_read(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Load)


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)
