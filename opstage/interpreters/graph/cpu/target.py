"""The target of compiled programs on the CPU."""

from __future__ import annotations

from ...codegen.cpu.target import LOOPS
from ...control import CONTROL
from .library import LIBRARY

# Ops that have neither a formula nor their own loops are computed by eager_cpu, which accepts any strides.
CPU = LOOPS._replace(by_hand=frozenset({*LIBRARY, *CONTROL}))
