"""Read ONNX files: convert protobuf messages to an `OnnxGraph`, with everything in them validated."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from ...files import require_file
from ...ops.errors import UnsupportedError, UsageError, brief
from ...ops.types import DType
from ..values import BFLOAT16
from .graph import Declared, Foreign, GraphNode, OnnxGraph, in_order

# Element types --------------------------------------------------------------------------------------------------------

NUMPY: dict[int, str] = {
    **dict(enumerate(("float32", "uint8", "int8", "uint16", "int16", "int32", "int64"), start=1)),
    **dict(enumerate(("bool", "float16", "float64", "uint32", "uint64"), start=9)),
}
"""Element types by their number in the enumeration TensorProto.DataType."""

NAMES = {8: "string", 14: "complex64", 15: "complex128"}


def dtype_of(element: int) -> DType:
    """Return the dtype of an element type. Raises UnsupportedError."""
    if element == 16:
        return BFLOAT16
    if element not in NUMPY:
        raise UnsupportedError(f"elements of type {NAMES.get(element, f'number {element}')} have no dtype here")
    return np.dtype(NUMPY[element])


# Schemas of operators -------------------------------------------------------------------------------------------------


class Schema(NamedTuple):
    """An operator of one version. `kinds` maps attribute names to numbers of AttributeProto.AttributeType."""

    fewest: int
    most: int
    kinds: dict[str, int]


@cache
def schema_of(op: str, domain: str, version: int) -> Schema | None:
    """Return ONNX's schema of the operator, or None if it is unknown."""
    defs = import_module("onnx.defs")
    try:
        found = defs.get_schema(op, version, domain)
    except Exception:  # SchemaError, which in some versions has no standard base class
        return None
    kinds = {name: int(each.type.value) for name, each in found.attributes.items()}
    return Schema(found.min_input, found.max_input, kinds)


def mismatch(op: str, domain: str, version: int, inputs: int, attributes: Iterable[tuple[Any, Any]]) -> str:
    """Say how a node violates its operator's schema: "its attribute axis is …"; empty if it does not.

    inputs      the number of inputs of the node
    attributes  messages AttributeProto: the node's, and the one that it refers to within a function. Attributes of
    undeclared kind or unknown name are not checked
    """
    schema = schema_of(op, domain, version) if 0 < version < 1 << 31 else None
    if schema is None:
        return ""
    if not schema.fewest <= inputs <= schema.most:
        wanted = f"{schema.fewest}" if schema.fewest == schema.most else f"{schema.fewest} to {schema.most}"
        return f"it has {inputs} inputs; the operator takes {wanted}"
    names = import_module("onnx").AttributeProto.AttributeType.Name
    for own, meant in attributes:
        kind = schema.kinds.get(own.name)
        if kind and meant is not None and meant.type not in (0, kind):
            return f"its attribute {brief(own.name)} is of kind {names(meant.type)}; the operator takes {names(kind)}"
    return ""


DOMAINS = ("", "ai.onnx")
"""Names of ONNX's own domain."""

OLDEST, NEWEST = 7, 28
"""Supported opset versions: older ones have other broadcasting rules. The newest is that of onnx 1.23."""

_MOST_LEVELS = 32  # of nested graphs and of nested functions
_MOST_NODES = 100_000


@dataclass(frozen=True, eq=False)
class File:
    """The content of a model file.

    graph     its main graph
    name      the name of the graph, or of the file if that has none
    producer, opset, metadata    its own metadata
    beside    the files of its external weights
    data      its bytes at the time of reading
    """

    graph: OnnxGraph
    name: str
    producer: str
    opset: int
    metadata: Mapping[str, str]
    beside: tuple[Path, ...]
    data: bytes = field(repr=False)


def read(source: str | os.PathLike[str] | bytes) -> File:
    """Read a model from a file, or from the bytes of one. Raises UsageError for one that is not a model or is
    damaged."""
    onnx = _package()
    if isinstance(source, bytes):
        where, stem, folder, data = "the ONNX model", "model", None, source
    else:
        path = Path(source)
        where, stem, folder = str(path), path.stem, path.parent
        require_file(path)
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"{where} cannot be read: {error.strerror or error}") from None
    model = onnx.ModelProto()
    try:
        model.ParseFromString(data)
    except Exception as error:  # protobuf's own error, which depends on the implementation
        raise UsageError(f"{where} is not an ONNX model, or a damaged one: {brief(str(error))}") from None
    if not model.HasField("graph") or not model.opset_import:
        raise UsageError(f"{where} is not an ONNX model: it lacks a graph, or the version of its operators")
    try:
        return _Reader(onnx, where, folder, model).file(stem, data)
    except _NoTextError as error:
        raise UsageError(f"{where}: {brief(error.data)} is a name in it, which is not text in UTF-8") from None


def _package() -> Any:
    try:
        return import_module("onnx")
    except ImportError:
        why = "ONNX models need the package onnx, which is not installed; pip install 'opstage[onnx]'"
        raise UsageError(why) from None


@dataclass(frozen=True)
class _Standing:
    """The scope of a message: the main graph, or a function that a node calls.

    names       maps the function's parameter names to outer names; None in a graph
    attributes  the attribute messages of the calling node
    versions    opset versions by domain
    level       the nesting depth
    """

    names: Mapping[str, str] | None
    prefix: str
    attributes: Mapping[str, Any]
    versions: Mapping[str, int]
    level: int

    def name(self, own: str) -> str:
        own = _text(own)
        if self.names is None or not own:
            return own
        return self.names.get(own, f"{self.prefix}{own}")


class _Reader:
    def __init__(self, onnx: Any, where: str, folder: Path | None, model: Any):
        self.onnx = onnx
        self.where = where
        self.folder = folder
        self.model = model
        self.functions = {(_domain(each.domain), each.name): each for each in model.functions}
        self.count = 0
        self.calls = 0
        self.beside: set[Path] = set()

    def refuse(self, why: str) -> NoReturn:
        raise UsageError(f"{self.where}: {why}")

    def file(self, stem: str, data: bytes) -> File:
        versions = _versions(self.model.opset_import)
        version = versions.get("", OLDEST)
        if not OLDEST <= version <= NEWEST:
            raise UnsupportedError(
                f"{self.where}: its operators are of version {version}; those from {OLDEST} to {NEWEST} are known, and "
                "onnx.version_converter converts others"
            )
        graph = self.graph(self.model.graph, _Standing(None, "", {}, versions, 0))
        metadata = {_text(each.key): _text(each.value) for each in self.model.metadata_props}
        beside = tuple(sorted(self.beside))
        opset, producer = versions.get("", 0), _text(self.model.producer_name)
        return File(graph, graph.name or stem, producer, opset, metadata, beside, data)

    def graph(self, proto: Any, call: _Standing) -> OnnxGraph:
        if call.level > _MOST_LEVELS:
            self.refuse(f"graphs stand in graphs more than {_MOST_LEVELS} deep")
        if proto.sparse_initializer:
            self.refuse("it has sparse initializers, which are not read")
        initializers: dict[str, npt.NDArray[Any]] = {}
        for tensor in proto.initializer:
            name = call.name(tensor.name)
            if name in initializers:
                self.refuse(f"the initializer {brief(name)} is there twice")
            initializers[name] = self.array(tensor, f"initializer {brief(name)}")
        # before version 4 of the format each initializer is also an input, with the initializer as its default
        inputs = tuple(self.declared(each, call) for each in proto.input if call.name(each.name) not in initializers)
        names = [each.name for each in inputs]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            self.refuse(f"the input {brief(twice[0])} is there twice")
        nodes: list[GraphNode] = []
        for node in [each for message in proto.node for each in self.nodes(message, call)]:
            if _is_tensor(node) and node.outputs[0] not in (*initializers, *names):
                initializers[node.outputs[0]] = node.attributes["value"]
            else:
                nodes.append(node)
        outputs = tuple(self.declared(each, call) for each in proto.output)
        given = {*initializers, *names}
        there = given.union(*[node.outputs for node in nodes])
        for output in outputs:
            if output.name not in there and not call.level:
                self.refuse(f"nothing gives the output {brief(output.name)}")
        ordered = in_order(nodes, given, self.where, inner=call.level > 0)
        return OnnxGraph(_text(proto.name), inputs, outputs, initializers, ordered)

    def nodes(self, proto: Any, call: _Standing) -> Iterator[GraphNode]:
        """Yield the node of a message, or those of the function that it calls."""
        self.count += 1
        if self.count > _MOST_NODES:
            self.refuse(f"it has more than {_MOST_NODES:,} nodes, a function's counted at each of its calls")
        function = self.functions.get((_domain(proto.domain), proto.op_type))
        if function is None:
            yield self.node(proto, call)
        else:
            yield from self.expanded(function, proto, call)

    def expanded(self, function: Any, proto: Any, call: _Standing) -> Iterator[GraphNode]:
        """Yield the nodes of a function, inlined at the node that calls it."""
        if call.level >= _MOST_LEVELS:
            self.refuse(f"functions call each other more than {_MOST_LEVELS} deep, {brief(proto.op_type)} among them")
        if len(proto.input) > len(function.input) or len(proto.output) > len(function.output):
            self.refuse(f"the function {brief(proto.op_type)} is called with more inputs or outputs than it has")
        self.calls += 1
        names = dict.fromkeys(function.input, "")
        names |= {own: call.name(theirs) for own, theirs in zip(function.input, proto.input)}
        names |= {own: call.name(theirs) for own, theirs in zip(function.output, proto.output) if theirs}
        attributes = {each.name: each for each in function.attribute_proto}
        attributes |= {each.name: self.bound(each, call) for each in proto.attribute}
        inner = _Standing(
            names,
            f"{call.prefix}{proto.name or proto.op_type}.{self.calls}/",
            {name: each for name, each in attributes.items() if each is not None},
            _versions(function.opset_import) or call.versions,
            call.level + 1,
        )
        for node in function.node:
            yield from self.nodes(node, inner)

    def bound(self, attribute: Any, call: _Standing) -> Any:
        """Return an attribute's message, or the caller's attribute that it refers to, or None if the caller has
        none."""
        return call.attributes.get(attribute.ref_attr_name) if attribute.ref_attr_name else attribute

    def node(self, proto: Any, call: _Standing) -> GraphNode:
        domain = _domain(proto.domain)
        op = _text(proto.op_type) if not domain else f"{domain}.{_text(proto.op_type)}"
        if domain not in call.versions:
            self.refuse(f"a node is a {brief(op)}, but the file does not say which version of {brief(domain)} it means")
        attributes = {}
        for each in proto.attribute:
            message = self.bound(each, call)
            if _text(each.name) in attributes:
                self.refuse(f"a {brief(op)} has the attribute {brief(each.name)} twice")
            if message is not None:
                attributes[each.name] = self.attribute(message, call, f"attribute {brief(each.name)} of {brief(op)}")
        outputs = tuple(call.name(name) for name in proto.output)
        if not any(outputs):
            self.refuse(f"{brief(op)} {brief(proto.name)} gives nothing")
        inputs = tuple(call.name(name) for name in proto.input)
        messages = [(each, self.bound(each, call)) for each in proto.attribute]
        if why := mismatch(proto.op_type, domain, call.versions[domain], len(inputs), messages):
            self.refuse(f"{brief(op)} {brief(proto.name)}: {why}")
        return GraphNode(op, f"{call.prefix}{_text(proto.name)}", inputs, outputs, attributes, call.versions[domain])

    def attribute(self, proto: Any, call: _Standing, what: str) -> Any:
        kinds = self.onnx.AttributeProto
        inner = replace(call, level=call.level + 1)
        match proto.type:
            case kinds.INT:
                return int(proto.i)
            case kinds.FLOAT:
                return float(proto.f)
            case kinds.STRING:
                return proto.s.decode("utf-8", "replace")
            case kinds.INTS:
                return [int(i) for i in proto.ints]
            case kinds.FLOATS:
                return [float(f) for f in proto.floats]
            case kinds.STRINGS:
                return [s.decode("utf-8", "replace") for s in proto.strings]
            case kinds.TENSOR:
                return self.array(proto.t, what)
            case kinds.GRAPH:
                return self.graph(proto.g, inner)
            case kinds.GRAPHS:
                return [self.graph(g, inner) for g in proto.graphs]
        return Foreign(f"{what} is of a kind that is not read")

    def declared(self, proto: Any, call: _Standing) -> Declared:
        """Return an input or output with its type, as far as the file declares it."""
        name = call.name(proto.name)
        if not name:
            self.refuse("an input or output lacks a name")
        kind = proto.type.WhichOneof("value")
        if kind is None:
            return Declared(name, None, None)
        if kind != "tensor_type":
            return Declared(name, None, None, f"it is a {kind.removesuffix('_type')}, not a tensor")
        tensor = proto.type.tensor_type
        if not tensor.elem_type:
            return Declared(name, None, None)
        dtype = self.dtype(tensor.elem_type)
        if isinstance(dtype, str):
            return Declared(name, None, None, dtype)
        if not tensor.HasField("shape"):
            return Declared(name, dtype, None)
        sizes: list[int | str | None] = []
        for dim in tensor.shape.dim:
            which = dim.WhichOneof("value")
            if which == "dim_value":  # -1 is how some writers mark a size as open
                sizes.append(int(dim.dim_value) if dim.dim_value >= 0 else None)
            else:
                text = _text(dim.dim_param)
                sizes.append(text if _names_a_size(text) else None)
        return Declared(name, dtype, tuple(sizes))

    def dtype(self, element: int) -> DType | str:
        """Return NumPy's dtype of an element type, or the reason why there is none."""
        try:
            return dtype_of(element)
        except UnsupportedError as error:
            return error.reason

    def array(self, proto: Any, what: str) -> Any:
        """Return the array of a tensor message, or a Foreign if its elements have no dtype here."""
        dims = [int(d) for d in proto.dims]
        count = math.prod(dims)
        if any(d < 0 for d in dims) or len(dims) > 64:
            self.refuse(f"{what} has the shape {brief(str(tuple(dims)))}, which no tensor has")
        dtype = self.dtype(proto.data_type)
        if isinstance(dtype, str):
            return Foreign(f"{what}: {dtype}")
        narrow = proto.data_type == self.onnx.TensorProto.BFLOAT16
        stored = np.dtype(np.uint16) if narrow else dtype.newbyteorder("<")
        if proto.data_location == self.onnx.TensorProto.EXTERNAL:
            flat = self.external(proto, stored, count, what)
        elif proto.HasField("raw_data"):
            needed, found = count * stored.itemsize, len(proto.raw_data)
            if found != needed:
                self.refuse(f"{what} of shape {tuple(dims)} has {found:,} bytes; {dtype} needs {needed:,}")
            flat = np.frombuffer(proto.raw_data, stored)
        else:
            flat = self.listed(proto, stored, count, what)
        if narrow:
            flat = (flat.astype(np.uint32) << 16).view(np.float32)
        return flat.reshape(dims) if flat.dtype == dtype else flat.astype(dtype).reshape(dims)

    def listed(self, proto: Any, stored: DType, count: int, what: str) -> npt.NDArray[Any]:
        """Return the elements of a message that lists them one by one, in the field of their type."""
        fields = {"float32": "float_data", "float64": "double_data", "int64": "int64_data"}
        field = fields.get(stored.name, "int32_data")
        if proto.data_type in (self.onnx.TensorProto.UINT32, self.onnx.TensorProto.UINT64):
            field = "uint64_data"
        entries = getattr(proto, field)
        if len(entries) != count:
            self.refuse(f"{what} of shape {tuple(proto.dims)} lists {len(entries):,} elements, not {count:,}")
        if stored.name in ("float16", "uint16"):  # stored as bit patterns
            return np.array(entries, np.uint32).astype(np.uint16).view(stored)
        return np.array(entries, np.dtype(np.int64) if field == "int32_data" else stored).astype(stored)

    def external(self, proto: Any, stored: DType, count: int, what: str) -> npt.NDArray[Any]:
        """Return elements from a file next to the model's, memory-mapped: read when used, and never from outside its
        folder."""
        entries = {_text(each.key): _text(each.value) for each in proto.external_data}
        location = entries.get("location", "")
        if self.folder is None:
            self.refuse(f"{what} is in the file {brief(location)}; load the model by its path")
        folder = self.folder.resolve()
        if not location or "\0" in location:
            self.refuse(f"{what} is in another file, of which no name is given")
        try:
            path = (folder / location).resolve()
            inside, there = path.is_relative_to(folder) and path != folder, path.is_file()
        except OSError as error:  # such as a name that is too long
            self.refuse(f"{what} is in {brief(location)}, which cannot be read: {error.strerror}")
        if not inside:
            self.refuse(f"{what} is in {brief(location)}, which is not in the model's folder; nothing else is read")
        if not there:
            self.refuse(f"{what} is in {brief(location)}, which is not there")
        try:
            offset, length = int(entries.get("offset") or 0), int(entries.get("length") or count * stored.itemsize)
        except ValueError:
            self.refuse(f"{what}: offset and length in {brief(location)} are not numbers")
        size = path.stat().st_size
        if length != count * stored.itemsize or offset < 0 or offset + length > size:
            self.refuse(
                f"{what} needs {count * stored.itemsize:,} bytes, but {length:,} from {offset:,} on are named in "
                f"{brief(location)}, which has {size:,}"
            )
        self.beside.add(path)
        if not count:
            return np.empty(0, stored)
        return np.memmap(path, stored, mode="r", offset=offset, shape=(count,))


class _NoTextError(Exception):
    def __init__(self, data: bytes):
        self.data = data


def _text(field: str | bytes) -> str:
    """Return a string field; protobuf returns bytes for invalid UTF-8."""
    if isinstance(field, bytes):
        raise _NoTextError(field)
    return field


def _is_tensor(node: GraphNode) -> bool:
    """Whether a node is a Constant of several floats, which is equivalent to an initializer."""
    value = node.attributes.get("value") if node.op == "Constant" else None
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 1


def _domain(name: str) -> str:
    return "" if _text(name) in DOMAINS else name


def _versions(imports: Iterable[Any]) -> dict[str, int]:
    return {_domain(each.domain): int(each.version) for each in imports}


def _names_a_size(text: str) -> bool:
    """Whether a dim's text is a name, which means one size everywhere; writers put "?", "-1" or "None" for no name."""
    return any(map(str.isalpha, text)) and text.strip().lower() not in ("none", "unknown", "unk")
