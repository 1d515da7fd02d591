"""The target of compiled programs on the CPU."""

from __future__ import annotations

from ...codegen.cpu.target import LOOPS
from ...control import CONTROL
from .library import LIBRARY

# Every op that has neither a formula nor loops of its own is computed by eager_cpu, which reads any strides.
CPU = LOOPS._replace(by_hand=frozenset({*LIBRARY, *CONTROL}))
