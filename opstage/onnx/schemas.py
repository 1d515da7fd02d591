"""The schemas of operators, as ONNX has them: how many inputs one takes, and of which kind its attributes are."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from ..ops.untrusted import brief


class Schema(NamedTuple):
    """An operator of one version. `kinds` are numbers of AttributeProto.AttributeType by the attributes' names."""

    fewest: int
    most: int
    kinds: dict[str, int]


@cache
def schema_of(op: str, domain: str, version: int) -> Schema | None:
    """The operator as ONNX defines it; None for one that it does not know."""
    defs = import_module("onnx.defs")
    try:
        found = defs.get_schema(op, version, domain)
    except Exception:  # SchemaError, which derives from none of Python's own in some versions
        return None
    kinds = {name: int(each.type.value) for name, each in found.attributes.items()}
    return Schema(found.min_input, found.max_input, kinds)


def mismatch(op: str, domain: str, version: int, inputs: int, attributes: Iterable[tuple[Any, Any]]) -> str:
    """How a node departs from its operator's schema: "its attribute axis is …"; empty where it does not.

    inputs      how many the node names
    attributes  messages AttributeProto: the node's, and the one that it stands for, which is another within a function.
                Those whose kind is not said are not judged, nor are unknown ones
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
