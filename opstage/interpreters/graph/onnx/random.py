"""Random tensors, which ONNX cannot say."""

from __future__ import annotations

from ....ops.catalogue import random
from ....ops.primitive import Primitive
from .rules import Rule

_REASON = "its random operators draw other bits, and it says nothing of integers that overflow, which our own need"

RULES: dict[Primitive, Rule] = {
    random.RAND_UNIFORM: Rule(None, _REASON),
    random.RAND_NORMAL: Rule(None, _REASON),
    random.BERNOULLI_MASK: Rule(None, _REASON),
}
