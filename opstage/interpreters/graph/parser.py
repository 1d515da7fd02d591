"""Parses graphs from text (see `text`). Nothing is executed: primitives are looked up by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from ...ops.catalogue import primitives
from ...ops.closed import Body, BodyConstant, Equation
from ...ops.cursor import RULE, Region
from ...ops.dims import DimScope
from ...ops.errors import OpstageError, SourceLine, UsageError, nearest
from ...ops.primitive import Primitive
from ...ops.registered import registered
from ...ops.types import BOOL, TensorType, as_dtype
from ...ops.untrusted import brief, shown
from ..control import CONTROL
from .checker import GraphError, check_graph
from .graph import Graph
from .notation import (
    MARKS,
    MOST_LEVELS,
    Array,
    NamedSizes,
    digest,
    read_array,
    read_region,
    read_statics,
    read_text,
    read_type,
)
from .text import INDENT, VERSION, names_of

_NUMBER = r"\d{1,18}"  # fits into 64 bits; longer numbers do not match any line
_HEADER = re.compile(rf"graph ({_NUMBER}): (\w+), seed (-?\d{{1,20}})", re.ASCII)
_NAME = r'"(?:[^"\\]|\\.)*"|\S+?'
_FILE = re.compile(r'file (\S+) = (".*")')
_INPUT = re.compile(rf"input ({_NUMBER})(?: ({_NAME}))?: (\(.+)", re.ASCII)
_CONSTANT = re.compile(rf"const %({_NUMBER}): (.+) = (?:(\w+) )?(\[.*\]|sha256:[0-9a-f]{{64}})", re.ASCII)
_RESULT = re.compile(rf"%({_NUMBER}): (\(.*?\) [a-z]\w*)(?:, (?=%)|$)", re.ASCII)
_CALL = re.compile(r"(\w+)\(((?:%[^\s,()]+(?:, |(?=\))))*)(.*)\)")
_ORDINAL = re.compile(rf"@{_NUMBER}", re.ASCII)
_SOURCE = re.compile(rf"(\S+):({_NUMBER})", re.ASCII)
_OUTPUT = re.compile(rf"output (?:({_NAME}) = )?%(\S+)")
_UNDEFINED = TensorType((), BOOL)
"""The type of unused slots, such as those of ops that were removed from the graph."""

MOST_SLOTS = 1_000_000
"""The limit of slots in all bodies together. Slots index lists, so a text beyond the limit is refused before the lists
are allocated."""


def parse(
    text: str, constants: Mapping[str, Array] | None = None, *, more_primitives: Mapping[str, Primitive] | None = None
) -> Graph:
    """Parse the text of a graph.

    constants           large constants by digest, as `large_constants` returns them
    more_primitives     primitives of other packages, by name

    Raises UsageError, with the line number, for text that is not a graph, and for a graph that violates the invariants.
    """
    return _Parser(text, constants or {}, every_primitive(more_primitives)).graph()


@final
class _Parser:
    """Parses the lines once, from top to bottom."""

    def __init__(self, text: str, constants: Mapping[str, Array], known: Mapping[str, Primitive]):
        self.rows = [(number, row.rstrip()) for number, row in enumerate(text.split("\n"), 1) if row.strip()]
        self.at = 0
        self.constants = constants
        self.known = known
        self.files: dict[str, str] = {}
        self.scope = DimScope()
        self.regions: dict[str, Region] = {}
        self.types: dict[str, TensorType] = {}
        self.bodies: dict[tuple[str, ...], tuple[Body, int]] = {}
        self.slots = 0

    def graph(self) -> Graph:
        try:
            graph = self._graph()
        except (OpstageError, ArithmeticError) as error:
            number = self.rows[self.at - 1][0] if self.at else 1
            raise UsageError(f"line {number} of the graph's text: {getattr(error, 'reason', error)}") from None
        try:
            return check_graph(graph)
        except GraphError as error:
            raise UsageError(f"the graph that the text describes is wrong: {error}") from None

    def _graph(self) -> Graph:
        header = _HEADER.fullmatch(next(self._rows("graph ", ""), ""))
        if header is None:
            raise UsageError(f"expected 'graph {VERSION}: DTYPE, seed N' first")
        require_version(int(header[1]))
        sizes = [[row.partition(" ")[2] for row in self._rows(word, "")] for word in ("size ", "where ", "assume ")]
        self.scope = NamedSizes(*map(tuple, sizes)).scope()
        for row in self._rows("file ", ""):
            short, path = _match(_FILE, row, 'file NAME = "PATH"')
            self.files[short] = _unquoted(path)
        body, inputs, outputs = self._body("", named=True)
        if self.at < len(self.rows):
            self.at += 1
            raise UsageError(f"{brief(self.rows[self.at - 1][1].strip())} is out of place")
        return Graph(body, inputs, outputs, as_dtype(header[2]), int(header[3]))

    def _rows(self, word: str, indent: str) -> Iterator[str]:
        """Yield the next lines while they begin with `word` at this depth."""
        while self.at < len(self.rows) and self.rows[self.at][1].startswith(indent + word):
            self.at += 1
            yield self.rows[self.at - 1][1][len(indent) :]

    def _body(self, indent: str, *, named: bool) -> tuple[Body, list[str], list[str]]:
        """Parse a body; if it is `named`, also the names of its inputs and outputs."""
        types: dict[int, TensorType] = {}
        inputs: list[int] = []
        names: list[str] = []
        for row in self._rows("input ", indent):
            slot, name, type_ = _match(_INPUT, row, "input NUMBER NAME: TYPE")
            inputs.append(_define(types, slot, self._type(type_)))
            names.append(_unquoted(name or ""))
        slots = {name: slot for slot, name in names_of(inputs, names).items()} if named else {}
        constants = [self._constant(row, types) for row in self._rows("const ", indent)]
        lines: dict[int, SourceLine | None] = {}
        equations = [self._equation(row, types, slots, lines, indent) for row in self._rows("%", indent)]
        outputs: list[int] = []
        results: list[str] = []
        for row in self._rows("output ", indent):
            name, ref = _match(_OUTPUT, row, "output NAME = %NUMBER")
            outputs.append(_slot(ref, slots))
            results.append(_unquoted(name or ""))
        count = 1 + max(types, default=-1)
        self._count(count)
        every = tuple([types.get(slot, _UNDEFINED) for slot in range(count)])
        body = Body(tuple(inputs), tuple(constants), tuple(equations), tuple(outputs), every, lines)
        return body, names, results

    def _constant(self, row: str, types: dict[int, TensorType]) -> BodyConstant:
        slot, text, held, content = _match(_CONSTANT, row, "const %NUMBER: TYPE = [ELEMENTS] or sha256:DIGEST")
        type_ = self._type(text)
        if content.startswith("["):
            shape = tuple([size for size in type_.shape if isinstance(size, int)])
            value = read_array(content, shape, as_dtype(held) if held else type_.dtype)
        else:
            value = held_constant(content.removeprefix("sha256:"), self.constants)
        return BodyConstant(_define(types, slot, type_), value, type_)

    def _equation(
        self,
        row: str,
        types: dict[int, TensorType],
        slots: Mapping[str, int],
        lines: dict[int, SourceLine | None],
        indent: str,
    ) -> Equation:
        written, _, place = row.rpartition("  # ")
        left, _, right = written.partition(" = ")
        call = _CALL.fullmatch(right)
        if call is None or _RESULT.sub("", left):
            raise UsageError(
                f"{brief(row.strip())} is not an equation; expected %NUMBER: TYPE = OP(%…, NAME=…)  # @ORDINAL …"
            )
        operands = tuple([_slot(ref, slots) for ref in re.findall(r"%([^\s,()]+)", call[2])])
        primitive = find_primitive(call[1], self.known)
        bodies = self._static_bodies(indent + INDENT)
        static = read_statics(call[3], self.scope, lambda position: _item(bodies, position))
        results = tuple([_define(types, n, self._type(type_)) for n, type_ in _RESULT.findall(left)])
        ordinal, region, marks = self._place(place, lines)
        mark = RULE if "recomputed" in marks else int("backward" in marks)
        return Equation(primitive, static, operands, results, region, ordinal, "opened" in marks, mark)

    def _static_bodies(self, indent: str) -> list[Body]:
        if len(indent) > MOST_LEVELS * 2 * len(INDENT):
            raise UsageError(f"bodies are nested deeper than {MOST_LEVELS} levels")
        return [self._static_body(indent + INDENT) for _ in self._rows("body ", indent)]

    def _static_body(self, indent: str) -> Body:
        """Parse a closed body. Bodies of one text are one object, whose slots count at each use, since traversals visit
        every use."""
        start = end = self.at
        while end < len(self.rows) and self.rows[end][1].startswith(indent):
            end += 1
        text = tuple([row[len(indent) :] for _, row in self.rows[start:end]])
        known = self.bodies.get(text)
        if known is None:
            before = self.slots
            body = self._body(indent, named=False)[0]
            self.bodies[text] = body, self.slots - before
            return body
        self.at = end
        self._count(known[1])
        return known[0]

    def _count(self, slots: int) -> None:
        self.slots += slots
        if self.slots > MOST_SLOTS:
            raise UsageError(f"%{slots - 1} is beyond the largest number: {MOST_SLOTS:,} in all bodies")

    def _type(self, text: str) -> TensorType:
        if text not in self.types:
            self.types[text] = read_type(text, self.scope)
        return self.types[text]

    def _place(self, text: str, lines: dict[int, SourceLine | None]) -> tuple[int, Region, list[str]]:
        """Parse `@12 model.py:42 blocks.0 backward` into (ordinal, region, marks); the source line is stored in
        `lines`."""
        first, *words = text.split() or [""]
        if not _ORDINAL.fullmatch(first):
            raise UsageError(f"{brief(text)} is not a place; after # comes @ and the ordinal of the op")
        ordinal = int(first[1:])
        source = _SOURCE.fullmatch(words[0]) if words and not words[0].startswith('"') else None
        if source is not None:
            words = words[1:]
            if source[1] not in self.files:
                raise UsageError(f"the file {source[1]} is not among those at the beginning")
        lines[ordinal] = SourceLine(self.files[source[1]], int(source[2])) if source is not None else None
        marks = [word for word in words if word in MARKS]
        regions = [word for word in words if word not in MARKS]
        if len(regions) > 1:
            raise UsageError(f"{brief(text)} names two regions")
        name = regions[0] if regions else ""
        if name not in self.regions:
            self.regions[name] = read_region(name)
        return ordinal, self.regions[name], marks


# What names in a text stand for ---------------------------------------------------------------------------------------


def require_version(version: int) -> None:
    """Raise UsageError for a version of the format that this Opstage cannot read."""
    if version != VERSION:
        raise UsageError(
            f"the graph is written in version {version} of the format, and this Opstage reads version {VERSION}"
            + ("; upgrade Opstage" if version > VERSION else "")
        )


def every_primitive(more: Mapping[str, Primitive] | None = None) -> dict[str, Primitive]:
    """Return Opstage's primitives and `more`, by name."""
    return {**primitives(), **{p.name: p for p in CONTROL}, **(more or {})}


def find_primitive(name: str, known: Mapping[str, Primitive]) -> Primitive:
    """Return the primitive of a name. Raises UsageError if there is none."""
    if name not in known:
        declared = registered(name)
        if declared is not None:
            return declared
        raise UsageError(
            f"there is no op {name!r}{nearest(name, known)}; ops of other packages go into more_primitives"
        )
    return known[name]


def held_constant(name: str, constants: Mapping[str, Array]) -> Array:
    """Return the constant of a digest, read-only. Raises UsageError if it is missing or has other content."""
    if name not in constants:
        raise UsageError(f"the constant {name[:12]}… is not among those given; large_constants(graph) gives them")
    value = np.array(constants[name])
    if digest(value) != name:
        raise UsageError(f"the constant {name[:12]}… has other values than when the graph was written")
    value.flags.writeable = False
    return value


# Small parts ----------------------------------------------------------------------------------------------------------


def _match(pattern: re.Pattern[str], row: str, form: str) -> tuple[Any, ...]:
    found = pattern.fullmatch(row)
    if found is None:
        raise UsageError(f"{brief(row.strip())} has another form than {form}")
    return found.groups()


def _define(types: dict[int, TensorType], number: str, type_: TensorType) -> int:
    slot = int(number)
    types[slot] = type_
    return slot


def _slot(ref: str, slots: Mapping[str, int]) -> int:
    if ref in slots:
        return slots[ref]
    if not re.fullmatch(_NUMBER, ref, re.ASCII):
        raise UsageError(f"no input is called {shown([ref])}{nearest(ref, slots)}")
    return int(ref)


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    try:
        return read_text(str(json.loads(text)))
    except UsageError:
        raise
    except ValueError:
        raise UsageError(f"the quotes of {brief(text)} do not close") from None


def _item(bodies: Sequence[Body], position: int) -> Body:
    if position >= len(bodies):
        raise UsageError(f"body {position} does not follow its equation")
    return bodies[position]
