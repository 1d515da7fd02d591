"""Names, ops, static parameters, sizes and constants as Python expressions over lines."""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import count
from typing import Any, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ...interpreters.graph.notation import digest
from ...ops.dims import DimExpr, DimFloat
from ...ops.errors import UnsupportedError
from ...ops.protocol import Ops
from ...ops.types import dtype_name
from .steps import INFIX, WIDE, CallStep, ProgramSteps, Spread, StaticNumber, reads

# Names ----------------------------------------------------------------------------------------------------------------

RESERVED = frozenset(
    {
        *keyword.kwlist,
        *keyword.softkwlist,
        *dir(builtins),
        *("ops", "params", "state", "moved", "prefix", "train", "config", "program", "make", "math"),
        *("i", "l", "O", "I"),
        *("Config", "Network", "Model", "Spec", "dataclass", "supervised"),
        *("INPUTS", "OUTPUTS", "PARAMS", "STATE", "STATE_NAMES", "TENSORS", "RECIPE"),
        *("maximum", "minimum", "ratio", "rsqrt", "tensors_beside"),
    }
)
"""Names with a meaning in the source."""


_LETTERS = ("x", "y", "z", "u", "v", "w")
LOCALS = (*_LETTERS, "h", "weight", "dropout", "step", "carry", "entry", "tensors", "then", "otherwise", "unfinished")
"""Names of tensors, in addition to names of ops; no function may have one of them."""


def identifier(name: str, fallback: str = "x") -> str:
    """Return a name of ASCII letters, digits and `_` that begins with a letter; `fallback` if nothing remains."""
    plain = re.sub(r"[^A-Za-z0-9_]+", "_", name).strip("_") or fallback
    return plain if plain[0].isalpha() else f"{fallback}_{plain}"


class SourceNames:
    """Unique names of one scope."""

    def __init__(self, taken: Collection[str] = ()):
        self._taken = {*taken}

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def take(self, name: str) -> str:
        """Return `name`, with a number appended if it is taken."""
        unique, i = name, 1
        while unique in self._taken or unique in RESERVED:
            i += 1
            unique = f"{name}_{i}"
        self._taken.add(unique)
        return unique


# Names of parameters and buffers --------------------------------------------------------------------------------------

_MADE_UP = re.compile(r"::|^\W*(val_|t_)?\d+$")


def given_names(found: ProgramSteps) -> dict[str, str]:
    """Return readable names of parameters and buffers: replace a generated one, `onnx::MatMul_12`, by the module that
    reads it, `encoder.layer.0.query.weight`."""
    names = _without_roots(found)
    kinds = {slot: (kind, names.get(name, name)) for slot, (kind, name) in found.inputs.items()}
    taken = {name for kind, name in kinds.values() if kind in ("params", "state")}
    for step in found.steps:
        for slot in reads(step):
            kind, name = found.inputs.get(slot, ("", ""))
            if kind != "params" or name in names or not _MADE_UP.search(name) or not step.path:
                continue
            module = ".".join(word for word, _ in step.path)
            choices = (f"{module}.weight{'' if i == 1 else f'_{i}'}" for i in count(1))
            names[name] = next(choice for choice in choices if choice not in taken)
            taken.add(names[name])
    found.inputs = {slot: (kind, names.get(name, name)) for slot, (kind, name) in found.inputs.items()}
    return names


def _without_roots(found: ProgramSteps) -> dict[str, str]:
    """Return names without the prefixes `params.` and `state.` of Opstage's own exports."""
    by_kind = {kind: [name for each, name in found.inputs.values() if each == kind] for kind in ("params", "state")}
    if not all(name.startswith(f"{kind}.") for kind, names in by_kind.items() for name in names):
        return {}
    short = {name: name.partition(".")[2] for names in by_kind.values() for name in names}
    return short if len(set(short.values())) == len(short) and all(short.values()) else {}


# Constants in the weights file ----------------------------------------------------------------------------------------

MOST_INLINE = 16
"""The largest number of elements of a constant in the source."""


def is_small(array: npt.NDArray[Any]) -> bool:
    """Whether a constant is written into the source."""
    return array.size <= MOST_INLINE and (array.size > 0 or array.ndim == 1)


class LargeConstants:
    """Large constants by name, with each array stored once.

    root   the prefix of their names, which no name in `taken` has
    """

    def __init__(self, taken: Collection[str]):
        self.root = "constant_"
        while any(name.startswith(self.root) for name in taken):
            self.root = f"own_{self.root}"
        self.arrays: dict[str, npt.NDArray[Any]] = {}
        self._known: dict[str, str] = {}

    def name(self, array: npt.NDArray[Any]) -> str:
        """Return the name of a constant in the file; floats that float32 represents exactly are stored as such."""
        key = digest(array)
        if key not in self._known:
            self._known[key] = f"{self.root}{len(self._known) + 1}"
            narrow = array.astype(np.float32) if array.dtype == np.float64 else array
            same = array.dtype != np.float64 or np.array_equal(narrow.astype(np.float64), array, equal_nan=True)
            self.arrays[self._known[key]] = narrow if same else array
        return self._known[key]


# Lines ----------------------------------------------------------------------------------------------------------------

WIDTH = 88


@final
@dataclass(frozen=True)
class Bracketed:
    """A bracketed expression `before(parts, …)after`: a call, tuple, list or dict; `comma` if a single part needs
    one."""

    before: str
    parts: tuple[Expression, ...]
    after: str
    comma: bool = False


@final
@dataclass(frozen=True)
class Prefixed:
    """A prefixed expression: `name=expression`, `lambda ops: expression`, `"key": expression`."""

    prefix: str
    inside: Expression


Expression: TypeAlias = "str | Bracketed | Prefixed"


def call(function: str, positional: Sequence[Expression], keywords: Sequence[tuple[str, Expression]] = ()) -> Bracketed:
    """Return a call of a function."""
    return Bracketed(f"{function}(", (*positional, *[Prefixed(f"{name}=", value) for name, value in keywords]), ")")


def tuple_of(parts: Sequence[Expression]) -> Bracketed:
    """Return a tuple."""
    return Bracketed("(", tuple(parts), ")", comma=len(parts) == 1)


def flat(expression: Expression) -> str:
    """Return the expression on one line."""
    if isinstance(expression, str):
        return expression
    if isinstance(expression, Prefixed):
        return f"{expression.prefix}{flat(expression.inside)}"
    comma = "," if expression.comma else ""
    return f"{expression.before}{', '.join(map(flat, expression.parts))}{comma}{expression.after}"


def lines(start: str, expression: Expression, indent: int, end: str = "") -> list[str]:
    """Return `start` and the expression, on one line if it fits."""
    margin = " " * indent
    whole = f"{margin}{start}{flat(expression)}{end}"
    if len(whole) <= WIDTH or isinstance(expression, str):
        return [whole]
    if isinstance(expression, Prefixed):
        return lines(f"{start}{expression.prefix}", expression.inside, indent, end)
    if not expression.parts:
        return [whole]
    head, tail = f"{margin}{start}{expression.before}", f"{margin}{expression.after}{end}"
    inside = ", ".join(map(flat, expression.parts))
    is_call = expression.before.endswith("(") and expression.before != "("
    if is_call and len(inside) + indent + 4 <= WIDTH:
        return [head, f"{margin}    {inside}", tail]
    broken = [line for part in expression.parts for line in lines("", part, indent + 4, ",")]
    return [head, *broken, tail]


# Static parameters, sizes and constants -------------------------------------------------------------------------------


class SourceExpressions:
    """The expressions of one program.

    dims    the name of each size in the source, by its name in the file
    used    names of `opstage.ops.dims` and modules that the source must import
    """

    def __init__(self, dims: Mapping[str, str]):
        self.dims = dims
        self.used: set[str] = set()
        self.sizes: set[str] = set()

    def static(self, value: Any) -> Expression:
        """Format a static parameter."""
        if isinstance(value, (DimExpr, DimFloat)):
            return self.size(value)
        if type(value) is float:
            return self.number(value)
        if type(value) in (bool, int, str):
            return repr(value) if type(value) is not str else quoted(value)
        if type(value) is Fraction:
            self.used.add("ratio")
            return f"ratio({value.numerator}, {value.denominator})"
        if type(value) is tuple:
            return tuple_of([self.static(entry) for entry in value])
        raise UnsupportedError(f"a static parameter of type {type(value).__name__} cannot be written in Python")

    def number(self, value: float) -> str:
        """Format any float, including nan and infinity."""
        if math.isfinite(value):
            return repr(value)
        self.used.add("math")
        return "math.nan" if math.isnan(value) else "math.inf" if value > 0 else "-math.inf"

    def size(self, value: DimExpr | DimFloat) -> str:
        """Format an expression in sizes; a real one is rounded only once, for any sizes."""
        tree = ast.parse(str(value), mode="eval").body
        made = _Sizes(self, real=isinstance(value, DimFloat)).visit(tree)
        return ast.unparse(made)

    def constant(self, array: npt.NDArray[Any]) -> Expression:
        """Format a small array as `ops.const(…)`."""
        entries = self._entries(array.tolist())
        keywords = [("dtype", quoted(dtype_name(array.dtype)))] if array.dtype.kind in "iu" else []
        return call("ops.const", [entries], keywords if array.dtype != np.int64 or not array.size else [])

    def _entries(self, value: Any) -> Expression:
        if isinstance(value, list):
            return Bracketed("[", tuple(self._entries(entry) for entry in value), "]")
        return self.number(value) if type(value) is float else repr(value)


class _Sizes(ast.NodeTransformer):
    """Converts size expressions to Python that is valid for numbers and for symbolic sizes."""

    def __init__(self, around: SourceExpressions, real: bool):
        self.around = around
        self.real = real

    def visit_Name(self, node: ast.Name) -> ast.AST:
        name = self.around.dims[node.id]
        self.around.sizes.add(name)
        if not self.real:
            return ast.Name(name)
        self.around.used.add("ratio")
        return ast.Call(ast.Name("ratio"), [ast.Name(name), ast.Constant(1)], [])

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = node.func.id if isinstance(node.func, ast.Name) else ""
        if function in ("min", "max"):
            name = {"min": "minimum", "max": "maximum"}[function]
            self.around.used.add(name)
            inner = _Sizes(self.around, real=False)
            found: ast.expr = ast.Call(ast.Name(name), [inner.visit(arg) for arg in node.args], [])
            return self._as_real(found)
        if function == "sqrt":
            return ast.BinOp(self.visit(node.args[0]), ast.Pow(), ast.Constant(0.5))
        raise UnsupportedError(f"the size {ast.unparse(node)} cannot be written in Python")

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        match node:
            case ast.BinOp(ast.Constant(value=1), ast.Div(), ast.Call(func=ast.Name(id="sqrt"), args=[inside])):
                self.around.used.add("rsqrt")
                return ast.Call(ast.Name("rsqrt"), [_Sizes(self.around, real=False).visit(inside)], [])
        if isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            inner = _Sizes(self.around, real=False)
            return self._as_real(ast.BinOp(inner.visit(node.left), node.op, inner.visit(node.right)))
        left, right = self.visit(node.left), self.visit_power(node)
        if self.real and isinstance(node.op, ast.Div) and not any(isinstance(n, ast.Name) for n in ast.walk(node)):
            left = self._as_real(left)  # integers, whose quotient would be rounded
        return ast.BinOp(left, node.op, right)

    def visit_power(self, node: ast.BinOp) -> Any:
        """Return the right operand; an exponent stays a plain number."""
        return node.right if isinstance(node.op, ast.Pow) else self.visit(node.right)

    def _as_real(self, node: ast.expr) -> ast.expr:
        if not self.real:
            return node
        self.around.used.add("ratio")
        return ast.Call(ast.Name("ratio"), [node, ast.Constant(1)], [])


def quoted(text: str) -> str:
    """Return a string literal in double quotes."""
    found = repr(text)
    return f'"{found[1:-1]}"' if found.startswith("'") and '"' not in found else found


_METHODS = {
    "biased_attention": "scaled_dot_product_attention",
    "scatter_add_rows": "scatter_add_row",
    "scatter_add_scalar": "scatter_add_vec",
}
"""Methods with another name than their op."""

_BY_FLAG = {"fft": ("inverse", "ifft")}
"""Static flags that select a method of their own."""

_SYNONYMS = {"axes": "axis"}
DRAWN = frozenset({"rand_uniform", "rand_normal", "bernoulli_mask"})
_OF_DRAWS = frozenset({"seed", "site"})


class TensorNames(Protocol):
    """Expressions for tensors."""

    def tensor(self, slot: int) -> str:
        """An expression for a tensor."""


@cache
def _parameters(method: str) -> tuple[inspect.Parameter, ...]:
    function = getattr(Ops, method, None)
    if function is None:
        raise UnsupportedError(f"the op {method} has no method, so it has no text here")
    return tuple(inspect.signature(function).parameters.values())[1:]


class CallTexts:
    """Formats calls of ops as text."""

    def __init__(self, expressions: SourceExpressions, names: TensorNames):
        self.expressions = expressions
        self.names = names

    def operand(self, operand: Any) -> Expression:
        """Return an operand: a tensor, or a number instead of one."""
        if isinstance(operand, StaticNumber):
            return self.expressions.static(operand.value)
        return self.names.tensor(operand.slot if isinstance(operand, Spread) else operand)

    def expression(self, step: CallStep) -> Expression:
        """Return the call of a step."""
        primitive, static = step.primitive, step.static
        if any(isinstance(each, Spread) for each in step.inputs):
            x, y = (self.operand(each) for each in step.inputs)
            return f"{x} {INFIX[primitive.name]} {y}"
        method = _METHODS.get(primitive.name, primitive.name)
        if primitive.name in _BY_FLAG:
            flag, flagged = _BY_FLAG[primitive.name]
            method = flagged if static[flag] else method
            static = {name: value for name, value in static.items() if name != flag}
        operands = self._operands(step)
        positional: list[Expression] = []
        keywords: list[tuple[str, Expression]] = []
        used = set()
        for parameter in _parameters(method):
            name = parameter.name
            if parameter.kind is parameter.KEYWORD_ONLY:
                given = next((n for n in (name, *[a for a, b in _SYNONYMS.items() if b == name]) if n in static), None)
                used.add(given)
                if given is not None and not self._is_left_out(step, parameter, static[given]):
                    keywords.append((name, self._keyword(name, parameter, static[given])))
            elif name in operands:
                positional.append(operands.pop(name))
            elif name in static:
                used.add(name)
                positional.append(self.expressions.static(static[name]))
            elif parameter.default is not None or operands:  # another argument follows
                positional.append("None")
        unknown = [n for n in static if n not in used and not n.startswith("has_") and n not in _OF_DRAWS]
        if operands or unknown:
            raise UnsupportedError(f"a call of {primitive.name} with {[*operands, *unknown]} has no text here")
        return call(f"ops.{method}", positional, keywords)

    def _operands(self, step: CallStep) -> dict[str, Expression]:
        """Return the operands of a step by the names of the method's parameters."""
        found: dict[str, Expression] = {}
        waiting = [self.operand(each) for each in step.inputs] if step.primitive.name not in DRAWN else []
        if step.primitive.name == "bernoulli_mask":
            waiting = [self.operand(step.inputs[0])]
        for name in step.primitive.operands:
            bare = name.strip("?*")
            if name.startswith("*"):
                if waiting:
                    found[bare] = Bracketed("[", tuple(waiting), "]")
                waiting = []
            elif waiting and (not name.endswith("?") or step.static.get(f"has_{bare}", True)):
                found["index" if bare == "idx" and step.primitive.name.startswith("scatter") else bare] = waiting.pop(0)
        if waiting:
            raise UnsupportedError(f"a call of {step.primitive.name} with other operands than its own has no text here")
        return found

    def _is_left_out(self, step: CallStep, parameter: inspect.Parameter, value: Any) -> bool:
        name, default = parameter.name, parameter.default
        if name in _OF_DRAWS and step.primitive.name in DRAWN:
            return True
        if name == "dtype" and default is None:
            return _is_program_float(value)
        if "OrTuple" in str(parameter.annotation) and type(value) is tuple and len(set(value)) == 1:
            value = value[0]
        return type(value) is type(default) and bool(value == default)

    def _keyword(self, name: str, parameter: inspect.Parameter, value: Any) -> Expression:
        if name == "dtype":
            return "ops.dtype" if _is_program_float(value) else quoted(str(value))
        if "OrTuple" in str(parameter.annotation) and type(value) is tuple and len(set(value)) == 1:
            value = value[0]
        return self.expressions.static(value)


def _is_program_float(dtype: str) -> bool:
    return dtype == WIDE.dtype
