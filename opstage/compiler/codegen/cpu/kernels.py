"""Kernels of clusters on the CPU: steps in machine code, shared by clusters that are alike, compiled on all cores.

`fused` generates the loops of a composite and calls them on concrete arrays. This does for one op what the compiled
interpreter does for a program, so a composite is computed without writing its intermediate values to memory, and
without a kernel of its own. Machine code has no sizes, so other shapes share it."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from itertools import chain, starmap
from struct import Struct
from types import TracebackType
from typing import Any, NamedTuple, final

import numpy as np

from ....ops.body import Equation
from ....ops.errors import RangeError
from ....ops.host_arrays import DATA, READABLE, Array, address_of, all_packed, packed
from ....ops.primitive import Primitive, Static, distinct
from ....ops.types import TensorType, dtype_name
from ....threads import usable_cores
from ...native import access
from ...native.compiler import Kernel, is_known
from ...native.kernel_cache import cache_folder
from ...native.thread_pool import KernelCall, KernelSequence
from ..arena import Item, arrange
from ..clusters import Cluster, FusionGroup, Level, left_in_memory, read_by, staged
from ..composites import Expander
from ..formulas import ASSEMBLE, ROW_MAX, ROW_SUM, has_formula
from ..fusion import fuse
from ..lowering import Lowered, Target
from ..views import Cuts, View, merged
from .arguments import Address, ArgumentTable, LoopSource, LoweredLoop, Patch, Scratch, view_address
from .source import FEW, cluster_loop, total_loop

# The target -----------------------------------------------------------------------------------------------------------

LOOPS = Target(
    frozenset(),
    strided=True,
    batch_axes=2,
    both_sums=True,
    few_rows=1,
    counts=False,
    turns=False,
    broken_rows=False,
    joins_rows=False,
    anywhere=True,
)


# Clusters that are alike ----------------------------------------------------------------------------------------------

# Clusters are alike if they are the same after their slots are numbered in the order in which they appear. Then so
# are the texts, and the words of a loop differ in the slots of their addresses alone.


@final
class AlikeClusters:
    """The loops of a plan's clusters, with numbers in place of slots."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[LoweredLoop, Cuts]] = {}

    def loop(self, cluster: Cluster, equations: Sequence[Equation], stored: Collection[int]) -> LoweredLoop:
        """Return what `cluster_loop` does."""
        numbers: dict[int, int] = {}
        key = _key(cluster, equations, stored, numbers)
        found = self._known.get(key)
        if found is None:
            loop = cluster_loop(cluster, equations, stored)
            self._known[key] = _renamed(loop, numbers), cluster.cuts
            return loop
        loop, cluster.cuts = found
        return _renamed(loop, [*numbers])


def _key(cluster: Cluster, equations: Sequence[Equation], stored: Collection[int], numbers: dict[int, int]) -> Hashable:
    """Return all that a cluster's loop is made from; `numbers` becomes the number of each slot in it."""
    lowered = cluster.lowered
    types, literals, views = lowered.types, lowered.literals, lowered.views

    def number(slot: int) -> int:
        return numbers.setdefault(slot, len(numbers))

    def seen(view: View) -> Hashable:
        memory = lowered.in_memory(view)
        of_memory = number(memory.root), memory[1:], types[memory.root].dtype, memory.root in lowered.counted
        return number(view.root), view[1:], of_memory

    parts: list[Hashable] = [cluster.size, cluster.extent, cluster.columns, cluster.cuts]
    parts += [(seen(view), level) for view, level in cluster.operands]
    parts += [(number(slot), level, slot in stored, seen(views[slot])) for slot, level in cluster.levels.items()]
    for e in equations:
        parts += [e.primitive, *map(number, e.outputs), *map(types.__getitem__, (*e.inputs, *e.outputs))]
        parts += [
            _literal(literals[slot]) if slot in literals else (number(views[slot].root), views[slot][1:])
            for slot in e.inputs
        ]
        parts += [*e.static, *map(type, e.static.values()), *distinct(e.static)]
    return tuple(parts)


def _literal(value: object) -> Hashable:
    """Return a constant so that 0.0 and -0.0, and 1 and True, are told apart."""
    return type(value), repr(value)


def _renamed(loop: LoweredLoop, names: dict[int, int] | Sequence[int]) -> LoweredLoop:
    """Return the loop with other slots."""
    words = tuple([Address(names[w.slot], w.offset) if type(w) is Address else w for w in loop.words])
    return loop._replace(words=words, totals=tuple([(scratch, names[slot]) for scratch, slot in loop.totals]))


# Steps ----------------------------------------------------------------------------------------------------------------


class NativeStep(NamedTuple):
    """A loop in machine code, divided among the workers if `parallel`; `group` is the number of its group."""

    loop: LoweredLoop
    parallel: bool
    group: int


def cluster_steps(
    lowered: Lowered,
    group: FusionGroup,
    number: int,
    read: Mapping[int, set[int]],
    results: Collection[int],
    alike: AlikeClusters,
) -> list[NativeStep]:
    """Return the loops of a group that is a cluster; values that other groups `read`, and `results`, are stored."""
    cluster = group.cluster
    assert cluster is not None
    loop = alike.loop(cluster, group.equations, left_in_memory(lowered, group, number, read, results))
    parallel = cluster.size >= FEW and loop.tasks > 1
    steps = [NativeStep(loop, parallel, number)]
    for scratch, slot in loop.totals:
        count = math.prod(lowered.views[slot].shape)
        out = view_address(lowered, lowered.views[slot])
        total = total_loop(scratch, out, count, dtype_name(lowered.types[slot].dtype))
        steps.append(NativeStep(total, False, number))
    return steps


# Operands that may be overwritten -------------------------------------------------------------------------------------


@final
class Overwritable:
    """Operands that a cluster reads for the last time, with the place of that read: its results may overwrite them."""

    __slots__ = ("_cluster", "_written", "_last")

    def __init__(self, cluster: Cluster, equations: Sequence[Equation]):
        lowered, stage = cluster.lowered, staged(cluster, equations)
        loads: dict[tuple[View, int], int] = {}  # the last equation in a pass that reads an operand
        apart = set()  # roots that are not read elementwise
        for place, e in enumerate(equations):
            at = stage[e.outputs[0]] - (e.primitive in (ROW_SUM, ROW_MAX))
            for view in [lowered.views[s] for s in e.inputs if s not in lowered.literals]:
                if view.root in cluster.levels:
                    continue
                loads.setdefault((view, at), place)
                whole = view.contiguous and view.offset == 0 and view.size == cluster.size
                if cluster.levels[e.outputs[0]] is Level.ROW and e.primitive not in (ROW_SUM, ROW_MAX):
                    whole = False
                if not whole:
                    apart.add(view.root)
        self._cluster = cluster
        self._written = {slot: (stage[slot], place) for place, e in enumerate(equations) for slot in e.outputs}
        self._last: dict[int, tuple[int, int]] = {}  # by root, in order of first reads
        for (view, at), place in loads.items():
            if view.root not in apart:
                self._last[view.root] = max(self._last.get(view.root, (0, 0)), (at, place))

    def by(self, slot: int) -> list[int]:
        """Return the roots whose elements are not read after the loop has written the elements of `slot` at their
        places."""
        if self._cluster.levels[slot] is not Level.ELEMENT:
            return []
        written = self._written[slot]
        return [root for root, last in self._last.items() if last <= written]


# Compilation ----------------------------------------------------------------------------------------------------------

# llvmlite runs LLVM in one thread at a time, so with many kernels other processes help. They start while this process
# still plans and compiles hand-written kernels. They compile the largest sources first and this process the smallest
# first; each stores compiled kernels on disk, where the others find them, so none waits for the share of another. If
# they fail, this process compiles the remaining kernels.

_log = logging.getLogger(__name__)

_START = 12
"""The number of kernels that compile in the time that a process takes to start."""

_NEEDED = ("opstage", "numpy", "optree", "typing_extensions", "llvmlite")

# The standard library comes first, so a fractions.py in the current folder or next to the package is not imported.
# PYTHONPATH, PYTHONSTARTUP and sitecustomize.py are ignored too.
_CHILD = f"""import sys
sys.path += sys.argv[1:]
from {__name__} import _main
_main()"""


@final
class Compilation:
    """The compilation of one plan; leaving the context stops all other processes."""

    def __init__(self) -> None:
        self._others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Compilation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._others:
            process.terminate()
        for process in self._others:
            process.wait()

    def begin(self, texts: Sequence[LoopSource]) -> None:
        """Start other processes on these sources, if there are many."""
        missing = _missing(texts)
        count = min(usable_cores() - 1, len(missing) // _START)
        if count > 0 and cache_folder() is not None:
            try:
                for place in range(count):
                    self._others.append(_elsewhere(missing[place::count]))
            except OSError as error:
                _log.debug("kernels are compiled by fewer processes: %s", error)

    def end(self, texts: Sequence[LoopSource]) -> dict[LoopSource, Kernel]:
        """Return the kernels of all sources, including those of `begin`."""
        if not self._others:
            self.begin(texts)
        for text in reversed(_missing(texts)):
            text.compiled()
        return {text: text.compiled() for text in dict.fromkeys(texts)}


def _missing(texts: Sequence[LoopSource]) -> list[LoopSource]:
    """Return the distinct sources without a cached kernel, the largest first."""
    return sorted((t for t in dict.fromkeys(texts) if not is_known(t.content)), key=lambda text: -len(text.body))


def _elsewhere(texts: Sequence[LoopSource]) -> subprocess.Popen[bytes]:
    """Start a process that compiles these sources."""
    with tempfile.TemporaryFile() as given:  # a pipe would block this process until the other one reads
        given.write(json.dumps(texts).encode())
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _CHILD, *_roots()],
            stdin=given,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C only reaches this process, which stops the other one
        )


def _roots() -> list[str]:
    """Return the import paths of the packages that the other process needs."""
    specs = [find_spec(name) for name in _NEEDED]
    origins = [os.path.abspath(spec.origin) for spec in specs if spec is not None and spec.origin]
    packages = [os.path.dirname(origin) if origin.endswith("__init__.py") else origin for origin in origins]
    return list(dict.fromkeys(map(os.path.dirname, packages)))


def _main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # partially written files are removed
    for name, preamble, body, accesses in json.load(sys.stdin):
        text = LoopSource(name, preamble, body, tuple(tuple(each) for each in accesses))
        if not is_known(text.content):
            text.compiled()


# Composites on arrays -------------------------------------------------------------------------------------------------

_MOST_TABLES = 8


def fused(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> FusedLoops | None:
    """Return the kernel of a composite for operand types; None if loops cannot compute all of it."""
    if not READABLE:
        return None
    body = Expander(has_formula, loops=False).body(primitive, types, static)
    lowered = Lowered(body, LOOPS, own_outputs=True)
    groups = fuse(lowered)
    if any(group.cluster is None and group.equations[0].primitive is not ASSEMBLE for group in groups):
        return None
    if not _by_rows(lowered):
        return None
    read, results, alike = read_by(lowered, groups), _results(lowered), AlikeClusters()
    loops = [
        cluster_steps(lowered, group, number, read, results, alike)
        for number, group in enumerate(groups)
        if group.cluster is not None
    ]
    return FusedLoops(lowered, [*chain(*loops)])


def _by_rows(lowered: Lowered) -> bool:
    """Return whether all reduced rows are contiguous in memory; otherwise NumPy is as fast."""
    views = [lowered.views[e.inputs[0]] for e in lowered.equations if e.primitive in (ROW_SUM, ROW_MAX)]
    return all(axes[-1][1] <= 1 for view in views if (axes := merged(view.shape, view.strides)))


def _results(lowered: Lowered) -> list[int]:
    """Return the root slot with the elements of each result; its shape may differ."""
    return [lowered.views[slot].root for slot in lowered.outputs]


class _LoopCall(NamedTuple):
    """A step of a call: its kernel (compiled on first use), its tasks, and its argument words."""

    kernel: Kernel | LoopSource
    tasks: int
    first: int
    many: int
    parallel: bool

    def step(self, words: Any) -> KernelCall:
        """Return the step, with its part of a call's argument words."""
        kernel = self.kernel if isinstance(self.kernel, Kernel) else self.kernel.compiled()
        return KernelCall(kernel, self.tasks, words[self.first : self.first + self.many], self.parallel)


@final
class FusedLoops:
    """A composite's loops for operands of some shapes. Calls return new arrays and are thread-safe.

    The loops are compiled in the first call.

    scratch     bytes of temporary memory per call
    """

    __slots__ = ("scratch", "_results", "_steps", "_words", "_flags", "_patches", "_constants", "_idle")

    def __init__(self, lowered: Lowered, steps: Sequence[NativeStep]):
        operands = {slot: i for i, slot in enumerate(lowered.body.inputs)}
        places = {**operands, **{root: len(operands) + i for i, root in enumerate(_results(lowered))}}
        self._results: list[tuple[Any, Any]] = [
            (lowered.types[s].shape, lowered.types[s].dtype) for s in lowered.outputs
        ]
        self._constants = {slot: packed(value) for slot, value in lowered.constants.items()}
        arguments = ArgumentTable([(step.group, step.loop.words) for step in steps], places, self._constants)
        self._steps = [
            _LoopCall(step.loop.kernel, step.loop.tasks, first, len(step.loop.words), step.parallel)
            for step, first in zip(steps, arguments.starts)
        ]
        sizes: dict[Hashable, Any] = {
            key: lowered.types[key].nbytes for _, key, _ in arguments.scratch if isinstance(key, int)
        }
        for step in steps:
            own = [word for word in step.loop.words if isinstance(word, Scratch)]
            sizes.update({(step.group, word.key): word.room for word in own})
        offsets, self.scratch = arrange([Item(key, nbytes, 0, 0) for key, nbytes in sizes.items()])
        self._patches = arguments.patches
        self._patches += [Patch(at, len(places), offsets[key] + offset) for at, key, offset in arguments.scratch]
        self._words, self._flags = arguments.words, arguments.flags
        self._idle: list[_Table] = []

    def __call__(self, *operands: Array) -> tuple[Array, ...]:
        """Return the results for `operands`, which must have the types that this was made for.

        Raises RangeError, without op and operand, if an index is out of range.
        """
        results, arrays = self.memory(*operands)
        try:
            table = self._idle.pop()
        except IndexError:  # the first call, or concurrent calls in other threads
            table = _Table(self._words, self._flags, self._patches, self._steps)
        table.name(*map(id, arrays))
        table.action()
        found = table.error[0] if self._flags else 0
        if found:
            table.error[0] = 0
        if len(self._idle) < _MOST_TABLES:
            self._idle.append(table)
        if found:
            raise RangeError("an index is out of range")
        return results

    def memory(self, *operands: Array) -> tuple[tuple[Array, ...], list[Array]]:
        """Return new result arrays, and all arrays of a call in the order of patches."""
        results = tuple(starmap(np.empty, self._results))
        arrays = [*all_packed(operands), *results]
        if self.scratch:
            arrays.append(np.empty(self.scratch, np.uint8))
        return results, arrays


# Argument words are patched by machine code: in Python, that would take longer than the loops on small operands.
_PLACE = LoopSource(
    "place",
    f"data = int64({DATA})",
    """def kernel(lo, hi, worker, arguments):
    arrays, table, words = int64s(arguments, 3)
    for i in range(lo, hi):
        word, at, offset = load(table, 3 * i), load(table, 3 * i + 1), load(table, 3 * i + 2)
        store(words, word, load(load(arrays, at) + data, 0) + offset)""",
    (("load", "load", "int64", access.READ), ("store", "store", "int64", access.written(0))),
)


@final
class _Table:
    """The argument table of one call at a time, with the machine code that runs it. `name` sets its arrays, by id."""

    __slots__ = ("name", "action", "error", "_kept")

    def __init__(
        self, words: Sequence[int], flags: Sequence[int], patches: Sequence[Patch], steps: Sequence[_LoopCall]
    ):
        self.error = np.zeros(1, np.int64)
        arguments = np.array(words, np.int64)
        arguments[[*flags]] = address_of(self.error)
        patch = np.array(patches, np.int64)
        arrays = np.zeros(1 + max(p.array for p in patches), np.int64)
        place = np.array([address_of(x) for x in (arrays, patch, arguments)], np.int64)
        moved = arguments.view(np.uint64)
        schedule = KernelSequence(
            [
                KernelCall(_PLACE.compiled(), len(patches), place.view(np.uint64), False),
                *[loop.step(moved) for loop in steps],
            ]
        )
        self.name = partial(Struct(f"{len(arrays)}q").pack_into, memoryview(arrays), 0)  # type: ignore[arg-type]
        self.action = schedule.action
        self._kept = schedule, arrays, patch
