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
from .notation import MARKS, Array, NamedSizes, digest, quoted, show_array, show_region, show_static, show_type

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
    for value in equation.static.values():
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
        words += [f"{name}={show_static(value, within)}" for name, value in equation.static.items()]
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
