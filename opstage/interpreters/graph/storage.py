"""Graph files, in the safetensors format: constants as tensors, the rest as JSON in the metadata.

    format      "opstage graph"
    version     "1"
    document    JSON: see `_document`
    digest      SHA-256 of the document; constants are named by theirs

Types, static parameters and sizes are written in `notation`. Nothing in a file is executed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, final

from ...atomic import write_file
from ...ops.closed import Body, BodyConstant, Equation
from ...ops.cursor import RULE, Region
from ...ops.dims import DimScope
from ...ops.errors import OpstageError, SourceLine, UsageError
from ...ops.primitive import Primitive
from ...ops.splitmix import require_seed
from ...ops.types import EXACT, TensorType, as_dtype, dtype_name
from ...ops.untrusted import brief
from ...tensors import decode, decode_metadata, encode, read_bytes
from .checker import GraphError, check_graph
from .graph import Graph
from .notation import (
    MOST_LEVELS,
    Array,
    NamedSizes,
    digest,
    read_array,
    read_statics,
    read_type,
    show_array,
    show_static,
    show_type,
)
from .parser import MOST_SLOTS, every_primitive, find_primitive, held_constant, require_version
from .text import VERSION, static_bodies

FORMAT = "opstage graph"

T = TypeVar("T")


def save_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file atomically. Raises UsageError if that fails."""
    writer = _GraphEncoder()
    writer.body(graph.body)
    document = json.dumps(_document(graph, writer), separators=(",", ":"))
    metadata = {
        "format": FORMAT,
        "version": str(VERSION),
        "document": document,
        "digest": hashlib.sha256(document.encode()).hexdigest(),
    }
    write_file(Path(path), [encode(writer.tensors, metadata)])


def load_graph(path: str | os.PathLike[str], *, more_primitives: Mapping[str, Primitive] | None = None) -> Graph:
    """Read a graph that `save_graph` wrote.

    more_primitives     primitives of other packages, by name

    Raises UsageError, with the file name, for a file that is truncated, altered, not a graph, or of a newer version.
    """
    data = read_bytes(Path(path))
    metadata = decode_metadata(data, path)
    if metadata.get("format") != FORMAT:
        raise UsageError(f"{path}: it holds tensors but no graph; graph.save(path) writes one that does")
    try:
        require_version(int(metadata.get("version", "")))
    except ValueError as error:  # a subclass is UsageError
        raise UsageError(f"{path}: {error}") from None
    document = metadata.get("document", "")
    if hashlib.sha256(document.encode(errors="replace")).hexdigest() != metadata.get("digest"):
        raise UsageError(f"{path}: altered or damaged: the graph's digest does not match")
    tensors = decode(data, path)
    try:
        content = json.loads(document)
        json.dumps(content, ensure_ascii=False).encode()  # names with unpaired surrogates could not be written again
        return check_graph(_GraphDecoder(content, tensors, every_primitive(more_primitives)).graph())
    except (GraphError, UsageError) as error:
        raise UsageError(f"{path}: altered or damaged: {error}") from None
    except (OpstageError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{path}: altered or damaged: it holds no graph ({type(error).__name__}: {error})") from None


def _document(graph: Graph, writer: _GraphEncoder) -> dict[str, Any]:
    """Return the file's content except constants: tables, and the bodies in order of use.

    The graph's own body comes last.
    """
    sizes = NamedSizes.of(graph.body)
    return {
        "dtype": dtype_name(graph.dtype),
        "seed": graph.seed,
        "inputs": graph.input_names,
        "outputs": graph.output_names,
        "sizes": None if sizes is None else sizes._asdict(),
        "types": list(writer.types),
        "files": list(writer.files),
        "regions": [region.path for region in writer.regions],
        "bodies": writer.bodies,
    }


@final
class _GraphEncoder:
    """Encodes bodies, collecting the objects that they refer to in tables without duplicates."""

    def __init__(self) -> None:
        self.types: dict[str, int] = {}
        self.files: dict[str, int] = {}
        self.regions: dict[Region, int] = {}
        self.bodies: list[dict[str, Any]] = []
        self.tensors: dict[str, Array] = {}
        self._known: dict[Body, int] = {}

    def body(self, body: Body) -> int:
        """Return the position of a body in the document."""
        if body not in self._known:
            written = {
                "inputs": body.inputs,
                "outputs": body.outputs,
                "types": [self.types.setdefault(show_type(type_), len(self.types)) for type_ in body.types],
                "constants": [self.constant(constant) for constant in body.constants],
                "equations": [self.equation(equation) for equation in body.equations],
                "lines": [
                    [
                        ordinal,
                        None if line is None else self.files.setdefault(line.file, len(self.files)),
                        line and line[1],
                    ]
                    for ordinal, line in body.lines.items()
                ],
            }
            self._known[body] = len(self.bodies)
            self.bodies.append(written)
        return self._known[body]

    def constant(self, constant: BodyConstant) -> list[Any]:
        """Return [slot, elements as text, or digest]; the type is that of the slot."""
        if constant.value.dtype == EXACT:
            return [constant.slot, show_array(constant.value)]
        name = digest(constant.value)
        self.tensors[name] = constant.value
        return [constant.slot, name]

    def equation(self, equation: Equation) -> dict[str, Any]:
        within: list[Body] = []
        return {
            "op": equation.primitive.name,
            "static": ", ".join(f"{name}={show_static(value, within)}" for name, value in equation.static.items()),
            "bodies": [self.body(inner) for inner in static_bodies(equation)],
            "inputs": equation.inputs,
            "outputs": equation.outputs,
            "region": self.regions.setdefault(equation.region, len(self.regions)),
            "ordinal": equation.ordinal,
            "opened": equation.opened,
            "backward": equation.backward,
        }


@final
class _GraphDecoder:
    """Decodes a document into a graph; missing or ill-typed content raises whatever Python raises."""

    def __init__(self, document: dict[str, Any], tensors: Mapping[str, Array], known: Mapping[str, Primitive]):
        self.document = document
        self.tensors = tensors
        self.known = known
        sizes = document["sizes"]
        self.scope = DimScope() if sizes is None else NamedSizes(**{name: tuple(sizes[name]) for name in sizes}).scope()
        self.types = [read_type(text, self.scope) for text in document["types"]]
        self.regions = [Region(tuple((str(name), _natural(n)) for name, n in path)) for path in document["regions"]]
        self.bodies: list[Body] = []
        self.sizes: dict[Body, int] = {}
        self.levels: dict[Body, int] = {}
        if any(len(region.path) > MOST_LEVELS for region in self.regions):
            raise UsageError(f"it has a region of more than {MOST_LEVELS} levels")

    def graph(self) -> Graph:
        for body in self.document["bodies"]:
            self.bodies.append(self.body(body))
        inputs, outputs = ([str(name) for name in self.document[kind]] for kind in ("inputs", "outputs"))
        seed = self.document["seed"]
        require_seed(seed)
        return Graph(self.bodies[-1], inputs, outputs, as_dtype(self.document["dtype"]), seed)

    def body(self, written: dict[str, Any]) -> Body:
        types = tuple([_at(self.types, position) for position in written["types"]])
        lines = {
            _natural(ordinal): None
            if file is None
            else SourceLine(str(_at(self.document["files"], file)), _natural(line))
            for ordinal, file, line in written["lines"]
        }
        body = Body(
            tuple(written["inputs"]),
            tuple([self.constant(slot, content, types) for slot, content in written["constants"]]),
            tuple([self.equation(equation) for equation in written["equations"]]),
            tuple(written["outputs"]),
            types,
            lines,
        )
        # shared bodies are stored once but traversed for each use, so their sizes count every time
        within = [inner for equation in body.equations for inner in static_bodies(equation)]
        self.sizes[body] = 1 + len(body.equations) + len(types) + sum(self.sizes[inner] for inner in within)
        self.levels[body] = 1 + max((self.levels[inner] for inner in within), default=0)
        if self.levels[body] > MOST_LEVELS:
            raise UsageError(f"its bodies are nested deeper than {MOST_LEVELS} levels")
        if self.sizes[body] > MOST_SLOTS:
            raise UsageError(f"its bodies within each other have more than {MOST_SLOTS:,} tensors")
        return body

    def constant(self, slot: int, content: str, types: Sequence[TensorType]) -> BodyConstant:
        type_ = _at(types, slot)
        if content.startswith("["):
            shape = tuple([size for size in type_.shape if isinstance(size, int)])
            return BodyConstant(slot, read_array(content, shape, type_.dtype), type_)
        return BodyConstant(slot, held_constant(content, self.tensors), type_)

    def equation(self, written: dict[str, Any]) -> Equation:
        bodies = [_at(self.bodies, position) for position in written["bodies"]]
        return Equation(
            find_primitive(written["op"], self.known),
            read_statics(written["static"], self.scope, lambda position: _at(bodies, position)),
            tuple(written["inputs"]),
            tuple(written["outputs"]),
            _at(self.regions, written["region"]),
            _natural(written["ordinal"]),
            bool(written["opened"]),
            RULE if written["backward"] == RULE else int(bool(written["backward"])),
        )


def _natural(number: Any) -> int:
    """Return a nonnegative number. Raises ValueError for anything else."""
    if type(number) is not int or not 0 <= number < 10**18:
        raise ValueError(f"{brief(number)} counts nothing")
    return number


def _at(table: Sequence[T], position: int) -> T:
    """Return an entry of a table; negative positions raise IndexError."""
    if position < 0:
        raise IndexError(f"position {position} of a table")
    return table[position]
