"""Graphs as text: a line per equation, and what it takes to read them back.

    graph 1: float32, seed 0
    size B
    file mlp.py = "/home/me/models/mlp.py"
    input 0 params.w: (784, 10) float32
    input 1 x: (B, 784) float32
    const %2: (1,) float32 = [0.5]
    %3: (B, 10) float32 = matmul(%x, %params.w)  # @1 mlp.py:39 layers.0
    output logits = %3

A result is before `=` with its type, an op with operands and static parameters after it (see `notation`). After #
come the ordinal of the op in the program, the user's line, the region, `backward` where cotangents are carried back,
and `opened` where a residual is read. A closed body that is a static parameter follows its equation, indented.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import final

from ...ops.closed import Body, Equation
from ...ops.cursor import Region
from ...ops.errors import SourceLine
from ...ops.types import dtype_name
from .graph import Graph
from .notation import Array, NamedSizes, digest, quoted, show_array, show_region, show_static, show_type

VERSION = 1
INDENT = "  "
PLAIN_NAME = re.compile(r"[A-Za-z_][\w.\[\]-]*", re.ASCII)
_PLAIN_FILE = re.compile(r"[\w./-]+", re.ASCII)


def show_graph(graph: Graph) -> str:
    """The text of a graph, which `parse` reads; larger constants stand in it by digest, see `large_constants`."""
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
    """The constants that the text only names, by their digests."""
    return {
        digest(constant.value): constant.value
        for body in bodies(graph.body)
        for constant in body.constants
        if show_array(constant.value) is None
    }


def bodies(body: Body) -> Iterator[Body]:
    """A body, and before it all those that are static parameters in it."""
    for equation in body.equations:
        for inner in static_bodies(equation):
            yield from bodies(inner)
    yield body


def static_bodies(equation: Equation) -> list[Body]:
    """The closed bodies among the static parameters of an equation, in the order in which they are numbered."""
    found: list[Body] = []
    for value in equation.static.values():
        show_static(value, found)
    return found


def short_files(body: Body) -> dict[str, str]:
    """For every source file the shortest end of its path that no other one has."""
    lines = (line for inner in bodies(body) for line in inner.lines.values())
    files = sorted({line.file for line in lines if line is not None})
    short: dict[str, str] = {}
    for count in range(1, 1 + max((len(PurePath(file).parts) for file in files), default=0)):
        ends = {file: "/".join(PurePath(file).parts[-count:]) for file in files if file not in short}
        taken = Counter(ends.values())
        short |= {file: end for file, end in ends.items() if taken[end] == 1 and _PLAIN_FILE.fullmatch(end)}
    return {file: short.get(file, f"file{number}") for number, file in enumerate(files)}


def names_of(slots: Sequence[int], names: Sequence[str]) -> dict[int, str]:
    """How the inputs are called in equations: by name where that is a plain one and nobody else's, else by number."""
    taken = Counter(names)
    return {slot: name for slot, name in zip(slots, names) if taken[name] == 1 and PLAIN_NAME.fullmatch(name)}


@final
class _Printer:
    """Prints one body; `names` are those of a graph's inputs and outputs, and a closed body has none."""

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
        words += [f"{name}={show_static(value, within)}" for name, value in equation.static.items()]
        place = [f"@{equation.ordinal}"]
        line = self.body.lines.get(equation.ordinal)
        if line is not None:
            place.append(self.source(line))
        region = self._regions.get(equation.region)
        if region is None:
            region = self._regions[equation.region] = show_region(equation.region)
        place += [word for word in (region, "backward" * equation.backward, "opened" * equation.opened) if word]
        yield f"{indent}{results} = {equation.primitive.name}({', '.join(words)})  # {' '.join(place)}"
        for number, inner in enumerate(within):
            yield f"{indent}{INDENT}body {number}"
            yield from _Printer(inner, self.files, (), ()).lines(indent + INDENT * 2)

    def source(self, line: SourceLine) -> str:
        return f"{self.files[line.file]}:{line.line}"


def _name(name: str) -> str:
    return name if PLAIN_NAME.fullmatch(name) else quoted(name)
