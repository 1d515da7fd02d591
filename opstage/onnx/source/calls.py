"""Ops as method calls, as users write them."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, Protocol

from ...ops.errors import UnsupportedError
from ...ops.protocol import Ops
from .expressions import SourceExpressions, quoted
from .layout import Bracketed, Expression, call
from .operands import INFIX, Spread, StaticNumber
from .steps import WIDE, CallStep

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
