"""Mutations of ONNX models: of their messages, field by field, of what graphs mean, and of their bytes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from .mutations import mutate_bytes

_INTEGERS = (
    *(-(2**63), -(2**31), -1000, -2, -1, 0, 1, 2, 3, 7, 64, 65, 1000, 65_537, 10**6, 10**9),
    *(2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1),
)
_FLOATS = (0.0, -1.0, 0.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
_TEXTS = ("", "x", "y", "X", "\x1b[31m", "a/b/c", "/" * 300, "é", "z" * 3000, "ops", "class", "batch size", "reflect")
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "mine", "\x1b[31m")
_LARGEST = 40_000
"""The longest list that a mutation makes."""


def mutate_model(rng: random.Random, data: bytes) -> bytes:
    """One to three changes of the messages; now and then of the bytes."""
    if rng.random() < 0.2:
        return mutate_bytes(rng, data) if rng.random() < 0.9 else data + _deep(rng.choice((10, 30, 100, 20_000)))
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError:
        return mutate_bytes(rng, data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        with suppress(DecodeError):  # graphs deeper than protobuf copies
            rng.choice(_CHANGES)(rng, model)
    return bytes(model.SerializeToString())


def _deep(levels: int) -> bytes:
    """The bytes of a graph in an attribute of a node of a graph, and so on; deeper than protobuf itself writes."""
    data = b""
    for _ in range(levels):
        for field in (6, 5, 1):  # AttributeProto.g, NodeProto.attribute, GraphProto.node
            data = _length_and(field, data)
    return _length_and(7, data)  # ModelProto.graph


def _length_and(field: int, data: bytes) -> bytes:
    size, length = b"", len(data)
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return bytes([field << 3 | 2]) + size + bytes([length]) + data


# Any field of any message --------------------------------------------------------------------------------------------


def _messages(message: Message) -> Iterator[Message]:
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner)


def _any_field(rng: random.Random, model: Any) -> None:
    """A field of any message set, cleared, repeated or taken from another one."""
    messages = list(_messages(model))
    message: Any = rng.choice(messages)
    field = rng.choice(message.DESCRIPTOR.fields)
    if field.message_type is not None:
        others = [m for m in messages if m.DESCRIPTOR is field.message_type and m is not message]
        if rng.random() < 0.3 or not others:
            message.ClearField(field.name)
        elif field.is_repeated:
            copied = _copy(rng.choice(others))
            getattr(message, field.name).add().CopyFrom(copied)
        elif not any(inner is message for inner in _messages(rng.choice(others))):
            copied = _copy(rng.choice(others))
            getattr(message, field.name).CopyFrom(copied)
    elif field.is_repeated:
        entries = getattr(message, field.name)
        match rng.randrange(4):
            case 0 if entries:
                del entries[rng.randrange(len(entries))]
            case 1 if entries:
                entries[rng.randrange(len(entries))] = _scalar(rng, field)
            case 2 if entries:
                entries.extend(list(entries) * rng.choice((1, 3, min(300, _LARGEST // len(entries)))))
            case _:
                entries.append(_scalar(rng, field))
    elif rng.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(rng, field))


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _scalar(rng: random.Random, field: Any) -> Any:
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        text = rng.choice(_TEXTS)
        return text.encode() if field.type == field.TYPE_BYTES else text
    if kind == field.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return rng.choice(_FLOATS)
    bits = 64 if kind in (field.CPPTYPE_INT64, field.CPPTYPE_UINT64) else 32
    number = rng.choice(_INTEGERS) % 2**bits
    signed = kind in (field.CPPTYPE_INT64, field.CPPTYPE_INT32)
    return number - 2**bits if signed and number >= 2 ** (bits - 1) else number


# What graphs mean -----------------------------------------------------------------------------------------------------


def _graphs(model: Any) -> list[Any]:
    return [m for m in _messages(model) if isinstance(m, GraphProto)]


def _nodes(model: Any) -> list[Any]:
    return [m for m in _messages(model) if isinstance(m, NodeProto)]


def _tensors(model: Any) -> list[Any]:
    return [m for m in _messages(model) if isinstance(m, TensorProto)]


def _rewire(rng: random.Random, model: Any) -> None:
    """An input or output of a node given another name of the graph: cycles, and values that are given twice."""
    nodes = [node for node in _nodes(model) if node.input or node.output]
    if not nodes:
        return
    names = [name for node in nodes for name in (*node.input, *node.output)]
    node = rng.choice(nodes)
    places = rng.choice([each for each in (node.input, node.output) if each])
    places[rng.randrange(len(places))] = rng.choice((*names, "", "nowhere"))


def _more_inputs(rng: random.Random, model: Any) -> None:
    nodes = _nodes(model)
    if not nodes:
        return
    node = rng.choice(nodes)
    names = [name for each in nodes for name in (*each.input, *each.output)] or ["x"]
    match rng.randrange(3):
        case 0:
            node.input.extend(rng.choice(names) for _ in range(rng.choice((1, 2, 500))))
        case 1:
            node.output.extend(f"more.{i}" for i in range(rng.choice((1, 2, 500))))
        case _ if node.input:
            del node.input[rng.randrange(len(node.input)) :]


def _other_op(rng: random.Random, model: Any) -> None:
    nodes = _nodes(model)
    if nodes:
        node, other = rng.choice(nodes), rng.choice(nodes)
        match rng.randrange(3):
            case 0:
                node.op_type = rng.choice((other.op_type, *_OPS, "Unknown", "\x1b[31m"))
            case 1:
                node.domain = rng.choice(_DOMAINS)
            case _:
                node.attribute.extend([_copy(each) for each in other.attribute])


_OPS = (
    "Tile", "Expand", "Reshape", "Range", "ConstantOfShape", "Pad", "Resize", "OneHot", "Loop", "If", "Scan", "Conv",
    "Gather", "Slice", "Split", "Concat", "TopK", "Cast", "LSTM", "MatMul", "Gemm", "Einsum", "Transpose", "Constant",
)  # fmt: skip


def _attribute(rng: random.Random, model: Any) -> None:
    """An attribute of another kind, of an extreme value, or of a name that the operator does not know."""
    nodes = _nodes(model)
    if not nodes:
        return
    node = rng.choice([each for each in nodes if each.attribute] or nodes)
    if not node.attribute:
        node.attribute.add().name = rng.choice(("axis", "axes", "to", "value", "perm", "mode", "body", "odd"))
    old = rng.choice(node.attribute)
    values: tuple[Any, ...] = (
        *(rng.choice(_INTEGERS), rng.choice(_FLOATS), rng.choice(_TEXTS)),
        *([rng.choice(_INTEGERS)] * rng.choice((1, 2, 3, 4, 70)), [rng.choice(_FLOATS)], [rng.choice(_TEXTS)]),
        *(list(range(rng.choice((1, 2, 5)))), [*list(old.ints), 1], list(old.ints)[:-1]),
        helper.make_tensor("t", TensorProto.FLOAT, [1], [rng.choice(_FLOATS)]),
        helper.make_graph([], "g", [], []),
    )
    new = helper.make_attribute(old.name, rng.choice([v for v in values if v != []]))
    if rng.random() < 0.2:
        new.type = rng.choice(AttributeProto.AttributeType.values())
    old.CopyFrom(new)


def _dims(rng: random.Random, model: Any) -> None:
    """Sizes of a tensor, or of an input, that are negative, huge or of another rank."""
    tensors = _tensors(model)
    if tensors and rng.random() < 0.6:
        tensor = rng.choice(tensors)
        match rng.randrange(4):
            case 0 if tensor.dims:
                tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(_INTEGERS)
            case 1:  # the same elements in another rank
                tensor.dims.extend([1] * rng.choice((1, 2, 5, 70)))
            case 2 if tensor.dims:
                size = 1
                for each in tensor.dims:
                    size *= each
                tensor.ClearField("dims")
                tensor.dims.append(max(min(size, 2**62), -(2**62)))
            case _:
                tensor.dims.extend(rng.choice(_INTEGERS) for _ in range(rng.choice((1, 3))))
        return
    for graph in _graphs(model):
        shapes = [each.type.tensor_type.shape for each in (*graph.input, *graph.output)]
        if shapes and rng.random() < 0.7:
            shape = rng.choice(shapes)
            match rng.randrange(4):
                case 0 if shape.dim:
                    shape.dim[rng.randrange(len(shape.dim))].dim_value = rng.choice(_INTEGERS)
                case 1 if shape.dim:
                    shape.dim[rng.randrange(len(shape.dim))].dim_param = rng.choice((*_TEXTS, "N", "2*N"))
                case 2 if shape.dim:
                    del shape.dim[rng.randrange(len(shape.dim))]
                case _:
                    shape.dim.add().dim_value = rng.choice(_INTEGERS)


def _numbers(rng: random.Random, model: Any) -> None:
    """Elements of a tensor, shapes and counts above all, set to something else."""
    tensors = [tensor for tensor in _tensors(model) if tensor.raw_data or tensor.int64_data]
    whole = [tensor for tensor in tensors if tensor.data_type == TensorProto.INT64]
    if not tensors:
        return
    tensor = rng.choice(whole if whole and rng.random() < 0.8 else tensors)
    if tensor.int64_data:
        tensor.int64_data[rng.randrange(len(tensor.int64_data))] = rng.choice(_INTEGERS)
        return
    width = 8 if tensor.data_type == TensorProto.INT64 else rng.choice((1, 2, 4))
    raw = bytearray(tensor.raw_data)
    if len(raw) >= width:
        at = rng.randrange(len(raw) // width) * width
        raw[at : at + width] = (rng.choice(_INTEGERS) % 2 ** (8 * width)).to_bytes(width, "little")
        tensor.raw_data = bytes(raw)


def _element_type(rng: random.Random, model: Any) -> None:
    """A tensor or an input of another element type, its data as they were."""
    kinds = rng.choice(TensorProto.DataType.values())
    places = [*_tensors(model), *[each.type.tensor_type for graph in _graphs(model) for each in graph.input]]
    if places:
        place = rng.choice(places)
        setattr(place, "data_type" if isinstance(place, TensorProto) else "elem_type", kinds)


def _data(rng: random.Random, model: Any) -> None:
    """The bytes of a tensor cut off, or stored in a field of another kind, or named twice."""
    tensors = _tensors(model)
    if not tensors:
        return
    tensor = rng.choice(tensors)
    match rng.randrange(4):
        case 0:
            tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data) + 1)]
        case 1:
            tensor.ClearField("raw_data")
            tensor.int32_data.extend([rng.choice((-(2**31), -1, 0, 70_000, 2**31 - 1))] * rng.choice((1, 3, 64)))
        case 2:
            tensor.data_location = TensorProto.EXTERNAL
        case _:
            tensor.float_data.extend([1.0] * rng.choice((1, 4, _LARGEST)))


def _initializers(rng: random.Random, model: Any) -> None:
    """An initializer that is missing, that is there twice, or that has the name of something else."""
    graph = rng.choice(_graphs(model)) if _graphs(model) else None
    if graph is None or not graph.initializer:
        return
    at = rng.randrange(len(graph.initializer))
    match rng.randrange(3):
        case 0:
            del graph.initializer[at]
        case 1:
            graph.initializer.add().CopyFrom(graph.initializer[at])
        case _:
            names = [name for node in graph.node for name in (*node.input, *node.output)]
            graph.initializer[at].name = rng.choice((*names, "", "\x1b[31m", "w" * 3000))


def _external(rng: random.Random, model: Any) -> None:
    """Weights in a file: of elsewhere, of a wrong place or length, one that is not a file, or the model's own."""
    tensors = _tensors(model)
    if not tensors:
        return
    tensor = rng.choice(tensors)
    if rng.random() < 0.5:
        tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    locations = ("w.bin", "../w.bin", "/etc/passwd", "/dev/zero", "/proc/self/mem", ".", "..", "", "a/../../w.bin")
    locations += ("model.onnx", "nowhere.bin", "w.bin/", "\0", "~/w.bin", "x" * 5000, "é" * 300, "file:///etc/passwd")
    numbers = (*[str(each) for each in _INTEGERS], "", "x", "0x10", "1e3", "٣", "9" * 5000, " 8 ", "8")
    for key, values in (("location", locations), ("offset", numbers), ("length", numbers)):
        if rng.random() < 0.8 or key == "location":
            entry = tensor.external_data.add()
            entry.key, entry.value = key, rng.choice(values)


def _versions(rng: random.Random, model: Any) -> None:
    match rng.randrange(4):
        case 0 if model.opset_import:
            model.opset_import[0].version = rng.choice((*_INTEGERS, *range(5, 30)))
        case 1:
            model.ClearField("opset_import")
        case 2:
            entry = model.opset_import.add()
            entry.domain, entry.version = rng.choice(_DOMAINS), rng.choice(_INTEGERS)
        case _:
            model.ir_version = rng.choice(_INTEGERS)


def _order(rng: random.Random, model: Any) -> None:
    """Nodes in another order, taken away, or there twice."""
    graphs = [graph for graph in _graphs(model) if graph.node]
    if not graphs:
        return
    graph = rng.choice(graphs)
    nodes = [_copy(node) for node in graph.node]
    match rng.randrange(3):
        case 0:
            rng.shuffle(nodes)
        case 1:
            del nodes[rng.randrange(len(nodes))]
        case _:
            nodes += nodes[: rng.choice((1, 50))]
    graph.ClearField("node")
    graph.node.extend(nodes)


def _nested(rng: random.Random, model: Any) -> None:
    """The main graph's nodes in branches of branches, or a chain of nodes as long."""
    graph = model.graph
    depth = rng.choice((2, 5, 15, 25))
    inner = helper.make_graph([_copy(node) for node in graph.node], "inner", [], [_copy(each) for each in graph.output])
    names = [each.name for each in graph.output]
    if not names:
        return
    for level in range(depth):
        yes = helper.make_node("Constant", [], [f"yes.{level}"], value_int=1)
        cast = helper.make_node("Cast", [f"yes.{level}"], [f"mask.{level}"], to=TensorProto.BOOL)
        other = inner if inner.ByteSize() < 3000 else helper.make_graph([], "none", [], graph.output)
        branch = helper.make_node("If", [f"mask.{level}"], names, then_branch=inner, else_branch=other)
        nodes = [yes, cast, branch]
        inner = helper.make_graph(nodes, f"level{level}", [], [_copy(each) for each in graph.output])
    graph.ClearField("node")
    graph.node.extend(inner.node)


def _loops(rng: random.Random, model: Any) -> None:
    """Loops in loops, each of so many iterations."""
    value = helper.make_empty_tensor_value_info
    body = helper.make_graph([helper.make_node("Identity", ["go"], ["goes"])], "body", [], [value("goes")])
    for level in range(rng.choice((1, 3, 20))):
        if level:
            nodes = [
                helper.make_node("Loop", ["trips", "go"], [], body=body),
                helper.make_node("Identity", ["go"], ["goes"]),
            ]
            nodes[0].output.append(f"unused.{level}")
            body = helper.make_graph(nodes, "body", [], [value("goes")])
        for name, element in (("i", TensorProto.INT64), ("go", TensorProto.BOOL)):
            body.input.append(helper.make_tensor_value_info(name, element, []))
        body.node.append(helper.make_node("Identity", ["i"], [f"at.{level}"]))
        body.output.append(value(f"at.{level}"))
    model.graph.initializer.append(
        helper.make_tensor("trips", TensorProto.INT64, [], [rng.choice((2, 16, *_INTEGERS))])
    )
    model.graph.initializer.append(helper.make_tensor("go", TensorProto.BOOL, [], [1]))
    model.graph.node.append(helper.make_node("Loop", ["trips", "go"], ["looped"], body=body))
    model.graph.output.append(value("looped"))


def _chain(rng: random.Random, model: Any) -> None:
    """What grows with every node: shapes doubled, tiled and joined many times over."""
    graph = model.graph
    if not graph.input or not graph.output:
        return
    name, op = graph.input[0].name, rng.choice(("Concat", "Tile", "Add", "Mul", "Shape", "Identity", "Range", "Expand"))
    count = rng.choice((3, 40, 200))
    factor = rng.choice((2, 10, 1000, 10**9))
    graph.initializer.append(helper.make_tensor("chain.n", TensorProto.INT64, [1], [factor]))
    value = rng.choice((name, "chain.n"))
    for i in range(count):
        inputs = {"Tile": [value, "chain.n"], "Expand": [value, "chain.n"], "Shape": [value], "Identity": [value]}
        inputs["Range"] = ["chain.n", value, "chain.n"]
        attributes = {"axis": 0} if op == "Concat" else {}
        graph.node.append(helper.make_node(op, inputs.get(op, [value, value]), [f"chain.{i}"], **attributes))
        value = f"chain.{i}"
    graph.output.append(helper.make_empty_tensor_value_info(value))


def _functions(rng: random.Random, model: Any) -> None:
    """Functions of the file that call themselves, each other, or an operator's name."""
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    nodes = _nodes(model)
    for i in range(rng.choice((1, 2, 40))):
        callee = rng.choice((f"F{i + 1}", "F0", f"F{i}", "Relu"))
        domain = "" if callee == "Relu" else "mine"
        body = [
            helper.make_node(callee, ["a"], ["t"], domain=domain),
            helper.make_node(callee, ["t"], ["b"], domain=domain),
        ]
        model.functions.append(helper.make_function("mine", f"F{i}", ["a"], ["b"], body, imports))
    if nodes and rng.random() < 0.9:
        node = rng.choice(nodes)
        node.op_type, node.domain = "F0", "mine"
        model.opset_import.append(helper.make_opsetid("mine", 1))


_CHANGES: tuple[Callable[[random.Random, Any], None], ...] = (
    *(_any_field, _any_field, _any_field, _rewire, _rewire, _more_inputs, _other_op, _other_op, _attribute, _attribute),
    *(_dims, _dims, _numbers, _numbers, _numbers, _element_type, _data, _initializers, _external, _versions, _order),
    *(_nested, _loops, _chain, _functions),
)
