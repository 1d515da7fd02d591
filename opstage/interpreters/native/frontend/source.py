"""The parsed source of a function, and the objects that its names refer to."""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple


class CannotCompile(Exception):
    """A kernel uses something that the front end does not support; the message has the place."""


class FunctionSource(NamedTuple):
    """A function: its parameters, its body, and the objects that its free names refer to.

    meaning    returns the object of a free name; AttributeError if there is none
    """

    name: str
    file: str
    parameters: tuple[str, ...]
    body: list[ast.stmt]
    meaning: Callable[[str], Any]

    def fail(self, node: ast.AST, reason: str) -> CannotCompile:
        return CannotCompile(f"{self.file}:{getattr(node, 'lineno', '?')}: in {self.name}: {reason}")


def source_of_text(text: str, space: Mapping[str, Any]) -> FunctionSource:
    """Return the only function in a text."""
    (function,) = ast.parse(text).body
    return _source(function, "<kernel>", lambda name: space[name] if name in space else getattr(builtins, name))


def source_of(function: Any) -> FunctionSource:
    """Return the source of a module-level function, or of a nested function or lambda."""
    code: CodeType = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or ()))
    names = function.__globals__

    def meaning(name: str) -> Any:
        if name in cells:
            return cells[name].cell_contents
        return names[name] if name in names else getattr(builtins, name)

    return _source(_node(code, function), code.co_filename, meaning)


def _source(node: Any, file: str, meaning: Callable[[str], Any]) -> FunctionSource:
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
        raise CannotCompile(f"{file}:{node.lineno}: parameters other than plain ones")
    parameters = tuple([each.arg for each in (*arguments.posonlyargs, *arguments.args)])
    if isinstance(node, ast.Lambda):
        returned = ast.copy_location(ast.Return(node.body), node.body)
        return FunctionSource("lambda", file, parameters, [returned], meaning)
    return FunctionSource(node.name, file, parameters, node.body, meaning)


def _node(code: CodeType, function: Any) -> Any:
    parameters = code.co_varnames[: code.co_argcount]
    found = [
        node
        for node in _functions(code.co_filename, function.__globals__).get(code.co_firstlineno, ())
        if tuple([each.arg for each in (*node.args.posonlyargs, *node.args.args)]) == parameters
        and getattr(node, "name", "<lambda>") == code.co_name
    ]
    if len(found) != 1:
        raise CannotCompile(f"{code.co_filename}:{code.co_firstlineno}: {len(found)} functions named {code.co_name}")
    return found[0]


_parsed: dict[str, dict[int, list[Any]]] = {}


def _functions(file: str, names: dict[str, Any]) -> dict[int, list[Any]]:
    """Return the functions of a file by first line, including decorators; `names` are the globals of its module."""
    if file not in _parsed:
        found: dict[int, list[Any]] = {}
        for node in ast.walk(ast.parse("".join(linecache.getlines(file, names)))):
            if isinstance(node, ast.FunctionDef):
                line = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found.setdefault(line, []).append(node)
            elif isinstance(node, ast.Lambda):
                found.setdefault(node.lineno, []).append(node)
        _parsed[file] = found
    return _parsed[file]
