"""Graphs as text: a line per equation, and everything needed to read them back.

    graph 1: float32, seed 0
    size B
    file mlp.py = "/home/me/models/mlp.py"
    input 0 params.w: (784, 10) float32
    input 1 x: (B, 784) float32
    const %2: (1,) float32 = [0.5]
    %3: (B, 10) float32 = matmul(%x, %params.w)  # @1 mlp.py:39 layers.0
    output logits = %3

Results with their types come before `=`, an op with operands and static parameters after it (see `notation`). After #
come the ordinal of the op in the program, the user's line, the region, `backward` for ops of the backward pass or
`recomputed` for those of a declared rule in it, and `opened` if a residual is read. A closed body that is a static
parameter follows its equation, indented.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, final

import numpy as np

from ...files import write_file
from ...ops.body import Body, BodyConstant, Equation
from ...ops.catalogue import registered
from ...ops.dims import DimScope
from ...ops.dispatch import RULE, Region
from ...ops.errors import OpstageError, SourceLine, UsageError, brief, nearest, shown
from ...ops.primitive import Primitive
from ...ops.types import BOOL, TensorType, as_dtype, dtype_name
from ...safetensors_files import decode, decode_metadata, encode, read_bytes
from ...transforms.control_flow import every_primitive
from ...transforms.tracer import DEFINITION, Composite, graph_statics
from .checker import GraphError, check_graph
from .graph import Graph
from .notation import (
    MARKS,
    MOST_LEVELS,
    Array,
    NamedSizes,
    digest,
    quoted,
    read_array,
    read_region,
    read_statics,
    read_text,
    read_type,
    show_array,
    show_region,
    show_static,
    show_type,
)

VERSION = 1
INDENT = "  "
PLAIN_NAME = re.compile(r"[A-Za-z_][\w.\[\]-]*", re.ASCII)
_PLAIN_FILE = re.compile(r"[\w./-]+", re.ASCII)


def show_graph(graph: Graph) -> str:
    """Return the text of a graph, which `parse` reads; large constants appear as digests, see `large_constants`."""
    lines = [f"graph {VERSION}: {dtype_name(graph.dtype)}, seed {graph.seed}"]
    sizes = NamedSizes.of(graph.body)
    if sizes is not None:
        lines += [f"size {name}" for name in sizes.names]
        lines += [f"where {relation}" for relation in sizes.declared]
        lines += [f"assume {relation}" for relation in sizes.assumed]
    files = short_files(graph.body)
    lines += [f"file {short} = {quoted(file)}" for file, short in files.items()]
    lines += _Printer(graph.body, files, graph.input_names, graph.output_names).lines("")
    return "\n".join(lines) + "\n"


def large_constants(graph: Graph) -> dict[str, Array]:
    """Return the constants that the text only names, by digest."""
    return {
        digest(constant.value): constant.value
        for body in bodies(graph.body)
        for constant in body.constants
        if show_array(constant.value) is None
    }


def bodies(body: Body) -> Iterator[Body]:
    """Yield all closed bodies in static parameters, inner ones first, then the body itself."""
    for equation in body.equations:
        for inner in static_bodies(equation):
            yield from bodies(inner)
    yield body


def static_bodies(equation: Equation) -> list[Body]:
    """Return the closed bodies in the static parameters of an equation, in the order of their numbers."""
    found: list[Body] = []
    for value in graph_statics(equation).values():
        show_static(value, found)
    return found


def short_files(body: Body) -> dict[str, str]:
    """Return, for every source file, the shortest unique suffix of its path."""
    lines = (line for inner in bodies(body) for line in inner.lines.values())
    files = sorted({line.file for line in lines if line is not None})
    short: dict[str, str] = {}
    for count in range(1, 1 + max((len(PurePath(file).parts) for file in files), default=0)):
        ends = {file: "/".join(PurePath(file).parts[-count:]) for file in files if file not in short}
        taken = Counter(ends.values())
        short |= {file: end for file, end in ends.items() if taken[end] == 1 and _PLAIN_FILE.fullmatch(end)}
    return {file: short.get(file, f"file{number}") for number, file in enumerate(files)}


def names_of(slots: Sequence[int], names: Sequence[str]) -> dict[int, str]:
    """Return the names of inputs in equations: names that are plain and unique; other inputs are numbered."""
    taken = Counter(names)
    return {slot: name for slot, name in zip(slots, names) if taken[name] == 1 and PLAIN_NAME.fullmatch(name)}


@final
class _Printer:
    """Prints one body; `inputs` and `outputs` are the names of a graph, and empty for closed bodies."""

    def __init__(self, body: Body, files: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]):
        self.body = body
        self.files = files
        self.inputs = inputs
        self.outputs = outputs
        self.known = names_of(body.inputs, inputs)
        self._regions: dict[Region, str] = {}

    def ref(self, slot: int) -> str:
        return f"%{self.known.get(slot, slot)}"

    def lines(self, indent: str) -> Iterator[str]:
        types = self.body.types
        for number, slot in enumerate(self.body.inputs):
            name = f" {_name(self.inputs[number])}" if self.inputs else ""
            yield f"{indent}input {slot}{name}: {show_type(types[slot])}"
        for constant in self.body.constants:
            shown = show_array(constant.value) or f"sha256:{digest(constant.value)}"
            held = constant.value.dtype
            as_held = "" if held == constant.type.dtype else f"{dtype_name(held)} "
            yield f"{indent}const %{constant.slot}: {show_type(constant.type)} = {as_held}{shown}"
        for equation in self.body.equations:
            yield from self.equation(equation, indent)
        for number, slot in enumerate(self.body.outputs):
            yield f"{indent}output {f'{_name(self.outputs[number])} = ' if self.outputs else ''}{self.ref(slot)}"

    def equation(self, equation: Equation, indent: str) -> Iterator[str]:
        results = ", ".join(f"%{slot}: {show_type(self.body.types[slot])}" for slot in equation.outputs)
        within: list[Body] = []
        words = [self.ref(slot) for slot in equation.inputs]
        words += [f"{name}={show_static(value, within)}" for name, value in graph_statics(equation).items()]
        place = [f"@{equation.ordinal}"]
        line = self.body.lines.get(equation.ordinal)
        if line is not None:
            place.append(self.source(line))
        region = self._regions.get(equation.region)
        if region is None:
            region = self._regions[equation.region] = show_region(equation.region)
        place += [word for word in (region, ("", *MARKS)[equation.backward], "opened" * equation.opened) if word]
        yield f"{indent}{results} = {equation.primitive.name}({', '.join(words)})  # {' '.join(place)}"
        for number, inner in enumerate(within):
            yield f"{indent}{INDENT}body {number}"
            yield from _Printer(inner, self.files, (), ()).lines(indent + INDENT * 2)

    def source(self, line: SourceLine) -> str:
        return f"{self.files[line.file]}:{line.line}"


def _name(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else quoted(name)


# Reading --------------------------------------------------------------------------------------------------------------


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
        self.composites: dict[tuple[str, int], Composite] = {}  # by name and id of the body
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
            raise UsageError(f"the text describes an invalid graph: {error}") from None

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
            value = find_constant(content.removeprefix("sha256:"), self.constants)
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
        bodies = self._static_bodies(indent + INDENT)
        static = read_statics(call[3], self.scope, lambda position: _item(bodies, position))
        definition = static.get(DEFINITION)
        if call[1] not in self.known and registered(call[1]) is None and isinstance(definition, Body):
            primitive: Primitive = self._composite(call[1], definition, [types.get(slot) for slot in operands])
            static = {}
        else:
            primitive = find_primitive(call[1], self.known)
        results = tuple([_define(types, n, self._type(type_)) for n, type_ in _RESULT.findall(left)])
        ordinal, region, marks = self._place(place, lines)
        mark = RULE if "recomputed" in marks else int("backward" in marks)
        return Equation(primitive, static, operands, results, region, ordinal, "opened" in marks, mark)

    def _composite(self, name: str, body: Body, operands: Sequence[TensorType | None]) -> Composite:
        """Return a body as one op. Raises UsageError for operands of other types than those of its inputs."""
        if operands != list(body.input_types):
            raise UsageError(f"the operands of {name} have other types than the inputs of its definition")
        found = self.composites.get((name, id(body)))
        if found is None:
            found = self.composites[name, id(body)] = Composite(name, body)
        return found

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
            raise UsageError(f"%{slots - 1} is beyond the limit of {MOST_SLOTS:,} slots in all bodies")

    def _type(self, text: str) -> TensorType:
        if text not in self.types:
            self.types[text] = read_type(text, self.scope)
        return self.types[text]

    def _place(self, text: str, lines: dict[int, SourceLine | None]) -> tuple[int, Region, list[str]]:
        """Parse `@12 model.py:42 blocks.0 backward` into (ordinal, region, marks); the source line is stored in
        `lines`."""
        first, *words = text.split() or [""]
        if not _ORDINAL.fullmatch(first):
            raise UsageError(f"expected @ and the ordinal of the op after #, got {brief(text)}")
        ordinal = int(first[1:])
        source = _SOURCE.fullmatch(words[0]) if words and not words[0].startswith('"') else None
        if source is not None:
            words = words[1:]
            if source[1] not in self.files:
                raise UsageError(f"the file {source[1]} is not declared at the beginning")
        lines[ordinal] = SourceLine(self.files[source[1]], int(source[2])) if source is not None else None
        marks = [word for word in words if word in MARKS]
        regions = [word for word in words if word not in MARKS]
        if len(regions) > 1:
            raise UsageError(f"expected one region, got {brief(text)}")
        name = regions[0] if regions else ""
        if name not in self.regions:
            self.regions[name] = read_region(name)
        return ordinal, self.regions[name], marks


# Names in a text ------------------------------------------------------------------------------------------------------


def require_version(version: int) -> None:
    """Raise UsageError for a version of the format that this Opstage cannot read."""
    if version != VERSION:
        raise UsageError(
            f"the graph is written in version {version} of the format, and this Opstage reads version {VERSION}"
            + ("; upgrade Opstage" if version > VERSION else "")
        )


def find_primitive(name: str, known: Mapping[str, Primitive]) -> Primitive:
    """Return the primitive of a name. Raises UsageError if there is none."""
    if name not in known:
        declared = registered(name)
        if declared is not None:
            return declared
        raise UsageError(
            f"op {name!r} is not known{nearest(name, known)}; pass ops of other packages as more_primitives"
        )
    return known[name]


def find_constant(name: str, constants: Mapping[str, Array]) -> Array:
    """Return the constant of a digest, read-only. Raises UsageError if it is missing or has other content."""
    if name not in constants:
        raise UsageError(f"the constant {name[:12]}… is missing; pass constants=large_constants(graph)")
    value = np.array(constants[name])
    if digest(value) != name:
        raise UsageError(f"the constant {name[:12]}… has other values than when the graph was written")
    value.flags.writeable = False
    return value


# Small parts ----------------------------------------------------------------------------------------------------------


def _match(pattern: re.Pattern[str], row: str, form: str) -> tuple[Any, ...]:
    found = pattern.fullmatch(row)
    if found is None:
        raise UsageError(f"expected {form}, got {brief(row.strip())}")
    return found.groups()


def _define(types: dict[int, TensorType], number: str, type_: TensorType) -> int:
    slot = int(number)
    types[slot] = type_
    return slot


def _slot(ref: str, slots: Mapping[str, int]) -> int:
    if ref in slots:
        return slots[ref]
    if not re.fullmatch(_NUMBER, ref, re.ASCII):
        raise UsageError(f"input {shown([ref])} is not defined{nearest(ref, slots)}")
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


# Files ----------------------------------------------------------------------------------------------------------------

# Graph files, in the safetensors format: the text of a graph in the metadata, its large constants as tensors.
#
#     format      "opstage graph"
#     version     that of the text
#     graph       the text (see `text`)
#     digest      SHA-256 of the text; constants are named by theirs
#
# Nothing in a file is executed.


FORMAT = "opstage graph"


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file atomically. Raises UsageError if that fails."""
    text = show_graph(graph)
    metadata = {"format": FORMAT, "version": str(VERSION), "graph": text, "digest": _digest(text)}
    write_file(Path(path), [encode(large_constants(graph), metadata)])


def load_graph(path: str | os.PathLike[str], *, more_primitives: Mapping[str, Primitive] | None = None) -> Graph:
    """Read a graph that `save_graph` wrote.

    more_primitives     primitives of other packages, by name

    Raises UsageError, with the file name, for a file that is truncated, altered, not a graph, or of a newer version.
    """
    data = read_bytes(Path(path))
    metadata = decode_metadata(data, path)
    if metadata.get("format") != FORMAT or "graph" not in metadata:
        raise UsageError(f"{path}: expected a graph, got tensors alone; graph.save(path) writes a graph")
    try:
        require_version(int(metadata.get("version", "")))
    except ValueError as error:  # a subclass is UsageError
        raise UsageError(f"{path}: {error}") from None
    if _digest(metadata["graph"]) != metadata.get("digest"):
        raise UsageError(f"{path}: altered or damaged: the graph's digest does not match")
    try:
        return parse(metadata["graph"], decode(data, path), more_primitives=more_primitives)
    except UsageError as error:
        raise UsageError(f"{path}: altered or damaged: {error}") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()
