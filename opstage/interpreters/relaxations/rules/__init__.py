"""Relations by primitive: lines below and above the results of an op, in its operands.

A rule is `(relaxed, refs, static, intervals) -> refs`, or None where it has nothing to say: the interval stands then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from ....ops.primitive import Primitive
from . import linear, pooling, products, unary

Rule: TypeAlias = Callable[..., Any]

RULES: dict[Primitive, Rule] = {**linear.RULES, **unary.RULES, **products.RULES, **pooling.RULES}
