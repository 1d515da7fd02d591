"""ONNX's operator schemas: the number of inputs and the kinds of attributes."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ..ops.untrusted import brief


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
