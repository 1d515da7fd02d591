"""The types of values in kernels, the functions that emit instructions directly, and the parsed source of functions."""

from __future__ import annotations

import ast
import builtins
import linecache
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
from llvmlite import ir

# Types ----------------------------------------------------------------------------------------------------------------


@final
class ScalarKind:
    """A type. `type` is LLVM's; `family` is "int", "uint", "bool", "float", or "other", for intrinsics only."""

    __slots__ = ("name", "type", "family", "bits")

    def __init__(self, name: str, type_: Any, family: str = "other", bits: int = 0):
        self.name, self.type, self.family, self.bits = name, type_, family, bits

    def __repr__(self) -> str:
        return self.name

    @property
    def whole(self) -> bool:
        return self.family in ("int", "uint", "bool")


BOOL = ScalarKind("bool", ir.IntType(1), "bool", 1)
UINT8 = ScalarKind("uint8", ir.IntType(8), "uint", 8)
INT32 = ScalarKind("int32", ir.IntType(32), "int", 32)
INT64 = ScalarKind("int64", ir.IntType(64), "int", 64)
UINT64 = ScalarKind("uint64", ir.IntType(64), "uint", 64)
FLOAT32 = ScalarKind("float32", ir.FloatType(), "float", 32)
FLOAT64 = ScalarKind("float64", ir.DoubleType(), "float", 64)
VOID = ScalarKind("void", ir.VoidType())
WORDS = ScalarKind("words", ir.IntType(64).as_pointer())
"""64-bit signed integers in consecutive memory: `w[i]`, by address."""

OF_NUMPY = {getattr(np, kind.name): kind for kind in (UINT8, INT32, INT64, UINT64, FLOAT32, FLOAT64)} | {np.bool_: BOOL}


@final
class Value:
    """A run-time value of a kernel. Everything else in a kernel's text is known at compile time."""

    __slots__ = ("kind", "ir")

    def __init__(self, kind: ScalarKind, at: Any):
        self.kind, self.ir = kind, at

    def __repr__(self) -> str:
        return f"a number {self.kind}"

    @property
    def constant(self) -> Any:
        """The number, if it is constant; else None."""
        return self.ir.constant if isinstance(self.ir, ir.Constant) else None


@final
class Known:
    """The kind of an object known at compile time: a function, a type, a namespace."""

    __slots__ = ("object",)

    def __init__(self, known: Any):
        self.object = known

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and other.object is self.object

    def __hash__(self) -> int:
        return id(self.object)


def constant(number: Any) -> Value | None:
    """Convert a number to a value: an int to int64, a float to float64, NumPy scalars to their type; None for the
    rest."""
    if isinstance(number, (bool, np.bool_)):
        return Value(BOOL, ir.Constant(BOOL.type, int(number)))
    if isinstance(number, np.generic):
        kind = OF_NUMPY.get(type(number))
        if kind is None:
            return None
        plain = number.item()
        if kind.family == "uint":
            plain = plain - (1 << kind.bits) if plain >> (kind.bits - 1) else plain
        return Value(kind, ir.Constant(kind.type, plain))
    if isinstance(number, int):
        return Value(INT64, ir.Constant(INT64.type, number))
    if isinstance(number, float):
        return Value(FLOAT64, ir.Constant(FLOAT64.type, number))
    return None


Kinds: TypeAlias = "ScalarKind | Known | tuple[Kinds, ...]"
"""The kind of a variable: of a value, of an object known at compile time, or of a tuple of these."""


# Intrinsics -----------------------------------------------------------------------------------------------------------


class Intrinsic(NamedTuple):
    """A function `build(builder, *operands)` that emits instructions with llvmlite's IRBuilder and returns the result
    or None."""

    name: str
    result: ScalarKind
    operands: tuple[ScalarKind, ...]
    build: Callable[..., Any]


def intrinsic(result: ScalarKind, *operands: ScalarKind) -> Callable[[Callable[..., Any]], Any]:
    """Decorate `build(builder, *operands)` to become an `Intrinsic`, a function that kernels can call."""
    return lambda build: Intrinsic(build.__name__, result, operands, build)


def declared(builder: Any, kind: Any, name: str) -> Any:
    """Declare an external function: LLVM's own, or the C library's."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, kind, name)


def allocated(builder: Any, kind: Any) -> Any:
    """Allocate memory on the stack once per call, and return its address."""
    with builder.goto_entry_block():
        return builder.alloca(kind)


# Source ---------------------------------------------------------------------------------------------------------------


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
