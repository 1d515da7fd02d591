"""No barrier of any kernel can be left out without a wrong result: each is taken out in turn, wherever it is needed.

The simulator runs a warp to the next barrier of its block before the others, so a missing barrier lets a warp read what
another has not written, or write over what it has not read. A probe is a program whose kernels have it.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.compiler.gpu import scheduler

INTERPRETERS = Path(opstage.__file__).parent / "interpreters"
FILES = {path.name: path for part in ("eager_cuda", "gpu") for path in sorted((INTERPRETERS / part).rglob("*.py"))}
DEVICE = Options(device="cuda")
COMPILED = Options(device="cuda", backend="compiled")


class Line(NamedTuple):
    file: str
    line: int


class Site(NamedTuple):
    """A barrier, and the line of the kernel that calls the function that has it; of a kernel's own, the same twice."""

    barrier: Line
    kernel: Line
    name: str


def _line(frame: FrameType) -> Line:
    return Line(Path(frame.f_code.co_filename).name, frame.f_lineno)


SHARED_FILES = {"rows.py"}
SHARED_NAMES = {"multiply", "accumulate"}


def _site() -> Site:
    """The barrier that is being waited at: beneath this file and what calls the scheduler."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and Path(frame.f_code.co_filename).name in ("language.py", "scheduler.py", "test_races.py"):
        frame = frame.f_back
    assert frame is not None
    kernel: FrameType | None = frame
    while kernel is not None and (
        Path(kernel.f_code.co_filename).name in SHARED_FILES or kernel.f_code.co_name in SHARED_NAMES
    ):
        kernel = kernel.f_back
    assert kernel is not None
    return Site(_line(frame), _line(kernel), kernel.f_code.co_name)


@contextmanager
def _barriers(met: set[Site], without: Site | None, *, reversed: bool = False) -> Iterator[None]:
    """Note the barriers that are met, and let nobody wait at one of them; `reversed` is the order of the warps."""
    wait, order = scheduler.wait_for_block, scheduler.last_warp_first

    def waiting() -> None:
        site = _site()
        met.add(site)
        if site != without:
            wait()

    scheduler.wait_for_block = waiting
    scheduler.last_warp_first = lambda block: order(block) != reversed
    try:
        yield
    finally:
        scheduler.wait_for_block, scheduler.last_warp_first = wait, order


def _array(*shape: int) -> Any:
    """Numbers that are all different, and whose sums are too."""
    return np.random.default_rng(np.prod(shape)).normal(size=shape).astype(np.float32)


CLASSES = 133
ROWS = _array(7, CLASSES)


def _heads(queries: int, keys: int, size: int) -> tuple[Any, ...]:
    return _array(1, queries, size), _array(1, keys, size) + 1, _array(1, keys, size) - 1


def _attention(causal: bool) -> Callable[..., Any]:
    return lambda ops, q, k, v: ops.sum(ops.tanh(ops.scaled_dot_product_attention(q, k, v, causal=causal)))


def _gradient(program: Callable[..., Any], *args: Any, options: Options) -> list[Any]:
    wrt = tuple(i for i, arg in enumerate(args) if arg.dtype.kind == "f")
    value, gradients = opstage.value_and_grad(program, *args, wrt=wrt, options=options)
    return [value, *gradients]


class Probe(NamedTuple):
    program: Callable[..., Any]
    args: tuple[Any, ...]
    options: Options = DEVICE

    def run(self, options: Options) -> list[Any]:
        return [
            opstage.run(self.program, *self.args, options=options),
            *_gradient(self.scalar, *self.args, options=options),
        ]

    def scalar(self, ops: Any, *refs: Any) -> Any:
        value = self.program(ops, *refs)
        return value if not len(value.shape) else ops.sum(ops.tanh(value))


PROBES: dict[str, Probe] = {
    "sum of rows": Probe(lambda ops, x: ops.reduce_sum(x, axis=(1,)), (ROWS,)),
    "max of rows": Probe(lambda ops, x: ops.reduce_max(x, axis=(1,)), (ROWS,)),
    "argmax of rows": Probe(
        lambda ops, x: ops.reduce_sum(x, axis=(1,)) * ops.cast(ops.argmax(x, axis=1), dtype=str(x.dtype)), (ROWS,)
    ),
    "softmax": Probe(lambda ops, x: ops.softmax(x, axis=1), (ROWS,)),
    "layer_norm": Probe(lambda ops, x, g, b: ops.layer_norm(x, g, b), (ROWS, _array(CLASSES) + 2, _array(CLASSES))),
    "product": Probe(lambda ops, x, y: ops.matmul(x, y), (_array(20, 37), _array(37, 18))),
    "convolution": Probe(lambda ops, k, x: ops.conv2d(k, None, x), (_array(2, 2, 3, 3), _array(2, 2, 13, 13))),
    "attention": Probe(_attention(False), _heads(33, 35, 17)),
    "causal attention": Probe(_attention(True), _heads(34, 34, 17)),
    "attention of wide heads": Probe(_attention(False), _heads(5, 130, 129)),
    "sums, compiled": Probe(lambda ops, x: ops.reduce_sum(ops.tanh(x), axis=(1,)), (ROWS,), COMPILED),
}


@cache
def _expected(name: str) -> tuple[list[Any], frozenset[Site]]:
    """What a probe computes with all barriers, which must be right, and which it meets."""
    probe, met = PROBES[name], set[Site]()
    with _barriers(met, None):
        found = probe.run(probe.options)
    for value, right in zip(found, probe.run(Options(dtype="float64"))):
        np.testing.assert_allclose(value, right, rtol=2e-4, atol=2e-5)
    return found, frozenset(met)


def _survives(name: str, site: Site) -> bool:
    """Whether a probe computes the same without a barrier, whichever warp is the first."""
    probe, (expected, _) = PROBES[name], _expected(name)
    for order in (False, True):
        try:
            with _barriers(set(), site, reversed=order), warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = probe.run(probe.options)
        except Exception:  # threads that wait at different barriers, say
            return False
        if not all(np.array_equal(a, b) for a, b in zip(found, expected)):
            return False
    return True


KERNELS: dict[str, tuple[str, ...]] = {
    "reduction.py": ("sum of rows", "max of rows", "argmax of rows"),
    "simulator.py": ("product",),
    "convolution.py": ("convolution",),
    "attention_tiles.py": ("attention", "causal attention"),
    "attention.py": ("attention of wide heads",),
    "<kernel": ("sums, compiled", "softmax", "layer_norm"),
}
"""By the file that has the kernels, or what their names begin with that are generated: the probes that meet their
barriers."""


@pytest.mark.parametrize("file", KERNELS)
def test_every_barrier_is_needed(file: str) -> None:
    met = {name: {site for site in _expected(name)[1] if site.kernel.file.startswith(file)} for name in KERNELS[file]}
    assert all(met.values()), "a probe has no kernel of that file with a barrier"
    for site in sorted(set().union(*met.values())):
        assert any(not _survives(name, site) for name in KERNELS[file] if site in met[name]), (
            f"every probe computes the same without the barrier at {site}"
        )


def _barriers_of_files() -> dict[str, set[int]]:
    """The lines of all barriers that are written down, and of all calls of functions that have some."""
    found: dict[str, set[int]] = {}
    shared = {"barrier", "syncthreads", "joined_sum", "joined_max", "joined_best"}
    for path in FILES.values():
        if path.name in ("language.py", "scheduler.py"):
            continue
        calls = shared | SHARED_NAMES if path.name == "attention_tiles.py" else shared
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "func", None)
            if isinstance(node, ast.Call) and (getattr(name, "id", None) or getattr(name, "attr", None)) in calls:
                found.setdefault(path.name, set()).add(node.lineno)
    return found


def test_no_barrier_is_left_out_of_these_tests() -> None:
    assert {name for names in KERNELS.values() for name in names} == PROBES.keys()
    met = {line for name in PROBES for site in _expected(name)[1] for line in (site.barrier, site.kernel)}
    missing = {Line(file, line) for file, lines in _barriers_of_files().items() for line in lines} - met
    assert not missing, f"no probe meets {sorted(missing)}"
