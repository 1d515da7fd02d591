"""Properties in the VNN-LIB format: boxes of inputs and, for each, the conditions on a counterexample's outputs.

A file is a list of SMT-LIB commands: `(declare-const X_0 Real)` for each input, Y_0, … for each output, and `(assert
…)` of comparisons, joined by `and` and `or`. All assertions together describe a counterexample. They are converted to
cases, of which a counterexample meets at least one: a box of the inputs, and linear conditions on the outputs that all
hold. The file is untrusted, and errors name the line. Source: the VNN-LIB standard, www.vnnlib.org.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from ..ops.errors import UsageError, brief

MOST_BYTES = 64 << 20
MOST_CASES = 10_000
_DEEPEST = 64
_TOKEN = re.compile(r"\s+|;[^\n]*|(\()|(\))|([^\s();]+)")
_VARIABLE = re.compile(r"([XY])_([0-9]{1,8})\Z")


@final
class Expression(NamedTuple):
    """A word, or a list of nodes, and its first line."""

    line: int
    word: str
    parts: tuple[Expression, ...] | None = None


class LinearCondition(NamedTuple):
    """Σ factors[name]·value + constant <= 0, or < 0 if strict, over inputs X_i and outputs Y_i by name."""

    line: int
    factors: dict[str, float]
    constant: float
    strict: bool = False


class UnsafeCase(NamedTuple):
    """A box of inputs, and conditions rows·y <= limits on the outputs: a counterexample meets all of them.

    strict        which conditions are rows·y < limits; one flag for all, or one for each
    open_lower    which lower ends the box excludes, likewise; `open_upper` which upper ends
    """

    lower: Any
    upper: Any
    rows: Any
    limits: Any
    strict: Any = False
    open_lower: Any = False
    open_upper: Any = False


class VnnProperty(NamedTuple):
    """The cases of a property, with its numbers of inputs and outputs; a counterexample meets one of the cases."""

    inputs: int
    outputs: int
    cases: tuple[UnsafeCase, ...]


_Clauses: TypeAlias = "list[list[LinearCondition]]"


def read(path: Path) -> VnnProperty:
    """Read the property in a file.

    Raises:
        UsageError: the file is not readable or not a valid property; the message names the line.
    """
    try:
        size = path.stat().st_size
        text = path.read_bytes()[: MOST_BYTES + 1].decode("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: expected text in UTF-8") from None
    if size > MOST_BYTES:
        raise UsageError(f"{path}: expected at most {MOST_BYTES:,} bytes, got {size:,}")
    return parse(text, path.name)


def parse(text: str, name: str = "property") -> VnnProperty:
    """Parse the text of a property."""
    reader = _PropertyReader(name)
    clauses: _Clauses = [[]]
    for command in _nodes(text, reader):
        found = reader.command(command)
        if found is not None:
            clauses = reader.conjunction(command, [clauses, found])
    return reader.property(clauses)


def _nodes(text: str, reader: _PropertyReader) -> Iterator[Expression]:
    """Yield the top-level lists of a text."""
    stack: list[tuple[int, list[Expression]]] = []
    line, at = 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        assert match is not None, at
        opening, closing, word = match.groups()
        if opening:
            if len(stack) >= _DEEPEST:
                raise reader.error(line, f"parentheses are nested more than {_DEEPEST} deep")
            stack.append((line, []))
        elif closing:
            if not stack:
                raise reader.error(line, "a ')' closes nothing")
            begun, parts = stack.pop()
            node = Expression(begun, "", tuple(parts))
            if stack:
                stack[-1][1].append(node)
            else:
                yield node
        elif word:
            if not stack:
                raise reader.error(line, f"{brief(word)} is outside any command")
            stack[-1][1].append(Expression(line, word))
        line += text.count("\n", at, match.end())
        at = match.end()
    if stack:
        raise reader.error(stack[-1][0], "a '(' is never closed")


@final
class _PropertyReader:
    """The declarations so far, and the file's name for error messages."""

    def __init__(self, name: str):
        self.name = name
        self.declared: dict[str, set[int]] = {"X": set(), "Y": set()}

    def error(self, line: int, why: str) -> UsageError:
        return UsageError(f"{self.name}:{line}: {why}")

    def command(self, node: Expression) -> _Clauses | None:
        """Return the assertion in a command, in disjunctive normal form; None for any other command."""
        parts = node.parts or ()
        head = parts[0].word if parts else ""
        if head in ("declare-const", "declare-fun"):
            self._declare(node, [part for part in parts if part.parts != ()])
            return None
        if head == "assert" and len(parts) == 2:
            return self._clauses(parts[1])
        if head in ("set-logic", "check-sat", "get-model", "set-info", "set-option", "exit"):
            return None
        raise self.error(node.line, f"expected a command declare-const or assert, got {brief(head or '()')}")

    def _declare(self, node: Expression, parts: Sequence[Expression]) -> None:
        if len(parts) != 3 or parts[2].word != "Real":
            raise self.error(node.line, "expected a declaration such as (declare-const X_0 Real)")
        kind, number = self._variable(parts[1])
        if number in self.declared[kind]:
            raise self.error(node.line, f"{kind}_{number} is declared twice")
        self.declared[kind].add(number)

    def _variable(self, node: Expression) -> tuple[str, int]:
        match = _VARIABLE.match(node.word)
        if match is None:
            raise self.error(
                node.line, f"expected an input X_0, … or an output Y_0, …, got {brief(node.word or '(…)')}"
            )
        return match[1], int(match[2])

    def _clauses(self, node: Expression) -> _Clauses:
        parts = node.parts or ()
        head = parts[0].word if parts else ""
        if head in ("and", "or") and len(parts) > 1:
            found = [self._clauses(part) for part in parts[1:]]
            return self.conjunction(node, found) if head == "and" else [clause for each in found for clause in each]
        if head in ("<=", ">=", "<", ">", "=") and len(parts) == 3:
            left, right = self._term(parts[1]), self._term(parts[2])
            strict = head in ("<", ">")
            below = self._sum(node, [left, _scaled(right, -1.0)])._replace(strict=strict)
            above = self._sum(node, [right, _scaled(left, -1.0)])._replace(strict=strict)
            return [[below, above]] if head == "=" else [[below if head in ("<=", "<") else above]]
        raise self.error(
            node.line, f"expected a condition of <=, >=, <, >, =, and, or; got {brief(head or node.word or '()')}"
        )

    def conjunction(self, node: Expression, parts: Sequence[_Clauses]) -> _Clauses:
        """Return the conjunction of parts, in disjunctive normal form."""
        if math.prod(len(part) for part in parts) > MOST_CASES:
            raise self.error(node.line, f"expected at most {MOST_CASES:,} cases, each with a separate box")
        return [[condition for clause in clauses for condition in clause] for clauses in product(*parts)]

    def _term(self, node: Expression) -> LinearCondition:
        """Return a linear term."""
        if node.parts is None:
            if _VARIABLE.match(node.word):
                kind, number = self._variable(node)
                if number not in self.declared[kind]:
                    raise self.error(node.line, f"{node.word} is not declared")
                return LinearCondition(node.line, {node.word: 1.0}, 0.0)
            return LinearCondition(node.line, {}, self._number(node))
        head = node.parts[0].word if node.parts else ""
        terms = [self._term(part) for part in node.parts[1:]]
        if head == "+" and terms:
            return self._sum(node, terms)
        if head == "-" and terms:
            rest = [_scaled(term, -1.0) for term in terms[1:]]
            return self._sum(node, [terms[0], *rest]) if rest else _scaled(terms[0], -1.0)
        if head == "*" and len(terms) == 2:
            first, second = terms if not terms[0].factors else reversed(terms)
            if first.factors:
                raise self.error(node.line, "a product of two variables is not supported: terms are linear")
            return _scaled(second, first.constant)
        raise self.error(node.line, f"expected a term of numbers, variables, +, - and *; got {brief(head or '()')}")

    def _sum(self, node: Expression, terms: Sequence[LinearCondition]) -> LinearCondition:
        factors: dict[str, float] = {}
        for term in terms:
            for name, factor in term.factors.items():
                factors[name] = factors.get(name, 0.0) + factor
        return LinearCondition(node.line, factors, math.fsum(term.constant for term in terms))

    def _number(self, node: Expression) -> float:
        try:
            value = float(node.word) if "_" not in node.word else math.nan
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(node.line, f"expected a variable or a finite number, got {brief(node.word)}")
        return value

    def property(self, clauses: _Clauses) -> VnnProperty:
        """Return the property: its cases, each with its box."""
        counts = []
        for kind, name in (("X", "inputs"), ("Y", "outputs")):
            numbers = self.declared[kind]
            if not numbers or max(numbers) != len(numbers) - 1:
                raise UsageError(
                    f"{self.name}: expected declarations of the {name} {kind}_0, {kind}_1, … without a gap"
                )
            counts.append(len(numbers))
        return VnnProperty(
            counts[0],
            counts[1],
            tuple(case for case in (self._case(clause, counts[0], counts[1]) for clause in clauses) if case),
        )

    def _case(self, clause: Sequence[LinearCondition], inputs: int, outputs: int) -> UnsafeCase | None:
        lows, highs = [(-math.inf, False)] * inputs, [(math.inf, True)] * inputs  # with flags: open, closed
        rows, limits, strict = [], [], []
        for condition in clause:
            factors = {name: factor for name, factor in condition.factors.items() if factor != 0}
            xs = [name for name in factors if name[0] == "X"]
            if not factors:
                if condition.constant > 0 or (condition.strict and condition.constant == 0):
                    return None
            elif not xs:
                row = np.zeros(outputs)
                for name, factor in factors.items():
                    row[int(name[2:])] = factor
                rows.append(row)
                limits.append(-condition.constant)
                strict.append(condition.strict)
            elif len(factors) == 1:
                i, factor = int(xs[0][2:]), factors[xs[0]]
                limit = -condition.constant / factor
                is_open = condition.strict
                if Fraction(limit) * Fraction(factor) != -Fraction(condition.constant):
                    # rounded outward, since the box must contain the exact one, so the end is open
                    limit, is_open = math.nextafter(limit, math.copysign(math.inf, factor)), True
                if factor > 0:
                    highs[i] = min(highs[i], (limit, not is_open))
                else:
                    lows[i] = max(lows[i], (limit, is_open))
            else:
                raise self.error(condition.line, "a condition on an input and another variable is not supported")
        (lower, open_lower), (upper, closed) = (np.array(ends, float).T for ends in (lows, highs))
        for open_ in np.flatnonzero(np.isinf(lower) | np.isinf(upper)):
            raise UsageError(f"{self.name}: input X_{open_}: expected a bound from both sides")
        if ((lower > upper) | ((lower == upper) & ((open_lower > 0) | (closed == 0)))).any():
            return None
        numbers = np.array(rows).reshape(len(rows), outputs)
        return UnsafeCase(lower, upper, numbers, np.array(limits), np.array(strict, bool), open_lower > 0, closed == 0)


def _scaled(term: LinearCondition, factor: float) -> LinearCondition:
    return LinearCondition(
        term.line, {name: each * factor for name, each in term.factors.items()}, term.constant * factor
    )
