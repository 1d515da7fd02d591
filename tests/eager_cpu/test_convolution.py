"""Convolutions in the pool, against the definition: a sum over windows, written with loops over the kernel's cells."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from opstage.compiler.native import KernelCall, one_thread
from opstage.interpreters.eager_cpu.kernels import convolution
from opstage.interpreters.eager_cpu.loops import channel_steps, convolution_choice, convolution_steps, direct_steps
from opstage.interpreters.eager_cpu.loops import depthwise_convolution as depthwise_steps
from opstage.interpreters.eager_cpu.loops.convolution_choice import Algorithm, Pass, choose_algorithm
from opstage.interpreters.eager_cpu.loops.geometry import ConvGeometry
from opstage.interpreters.eager_cpu.memory import release_workspace
from opstage.ops.convolution import CONV, CONV_KERNEL_GRAD, CONV_TRANSPOSE

Array = npt.NDArray[Any]
Sizes = tuple[int, ...]


class Case(NamedTuple):
    images: int
    channels_in: int
    channels_out: int
    cells: Sizes
    kernel: Sizes
    stride: Sizes = (1, 1)
    padding: Sizes = (0, 0)
    dilation: Sizes = (1, 1)
    groups: int = 1

    @property
    def counts(self) -> Sizes:
        return tuple(
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(self.cells, self.kernel, self.stride, self.padding, self.dilation)
        )

    @property
    def window(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    @property
    def unreached(self) -> Sizes:
        return tuple(
            n + 2 * p - d * (k - 1) - 1 - (count - 1) * s
            for n, count, k, s, p, d in zip(
                self.cells, self.counts, self.kernel, self.stride, self.padding, self.dilation
            )
        )


BY_CHANNELS = [
    Case(5, 32, 16, (9, 7), (3, 3), padding=(1, 1)),
    Case(9, 62, 32, (10, 11), (4, 4), stride=(2, 2)),
    Case(5, 48, 45, (7, 10), (4, 3), stride=(2, 3), padding=(1, 0), dilation=(1, 2)),
    Case(7, 79, 64, (5, 5), (3, 2), padding=(0, 1)),
    Case(5, 64, 128, (4, 4), (4, 4)),
    Case(4, 96, 64, (9, 8), (3, 3), stride=(3, 2), groups=2),
    Case(5, 32, 64, (40,), (3,), stride=(2,), padding=(1,), dilation=(2,)),
    Case(1, 32, 32, (21, 6), (5, 3), padding=(2, 1)),
    Case(5, 21, 32, (7, 6), (1, 1)),
    Case(3, 8, 48, (9, 5), (1, 1), stride=(2, 2), groups=2),
]
"""Those whose channels fill vectors."""

BY_CELLS = [
    Case(3, 32, 16, (5, 6, 7), (3, 2, 3), stride=(1, 2, 1), padding=(1, 1, 1), dilation=(1, 1, 2)),
    Case(2, 64, 96, (3, 5, 4), (2, 3, 1), stride=(2, 1, 3), padding=(0, 1, 0), dilation=(1, 1, 1), groups=2),
    Case(1, 16, 32, (7, 4, 5), (3, 3, 3), stride=(2, 2, 2), padding=(1, 1, 1), dilation=(1, 1, 1)),
    Case(5, 48, 32, (6, 6), (3, 3), padding=(1, 1)),
    Case(9, 45, 46, (4, 4), (3, 3), padding=(1, 1)),
    Case(2, 64, 48, (9, 9), (3, 3), padding=(6, 6), dilation=(6, 6)),
    Case(1, 37, 29, (12, 9), (5, 4), stride=(2, 1), padding=(2, 3)),
    Case(4, 32, 32, (29,), (4,), stride=(3,), padding=(5,), dilation=(2,)),
]
"""Those computed for one cell of the kernel after the other, forward or back or both."""

DEPTHWISE = [
    Case(3, 16, 16, (7, 7), (5, 5), padding=(2, 2), groups=16),
    Case(9, 29, 29, (6, 5), (3, 3), stride=(2, 2), padding=(1, 1), groups=29),
    Case(1, 13, 13, (37, 20), (3, 4), stride=(1, 3), padding=(1, 2), groups=13),
    Case(2, 32, 32, (9, 14), (7, 3), stride=(3, 1), padding=(3, 0), dilation=(1, 2), groups=32),
    Case(2, 14, 14, (10, 7), (2, 2), stride=(3, 4), groups=14),
    Case(2, 16, 16, (4, 5), (3, 3), padding=(9, 6), dilation=(4, 3), groups=16),
    Case(4, 46, 46, (33,), (5,), stride=(2,), padding=(4,), dilation=(3,), groups=46),
    Case(2, 16, 16, (1, 1), (3, 3), padding=(1, 1), groups=16),
]
"""Those whose channels are each by themselves, and fill vectors."""

CASES = [
    Case(4, 3, 8, (16, 16), (3, 3), padding=(1, 1)),
    Case(5, 4, 6, (7, 33), (3, 3), padding=(1, 1)),
    Case(2, 3, 4, (9, 40), (5, 2), padding=(2, 0)),
    Case(3, 2, 4, (11, 9), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(3, 4, 6, (12, 35), (3, 4), stride=(3, 2), padding=(2, 1), dilation=(2, 3), groups=2),
    Case(2, 6, 6, (8, 8), (3, 3), padding=(1, 1), groups=6),
    Case(3, 5, 7, (6, 5), (1, 1)),
    Case(3, 4, 4, (6, 5), (1, 1), stride=(2, 2), groups=2),
    Case(1, 3, 5, (20, 17), (3, 3), padding=(1, 1)),
    Case(1, 1, 1, (1, 1), (1, 1)),
    Case(1, 1, 1, (1, 1), (3, 3), padding=(1, 1)),
    Case(2, 2, 3, (4, 4), (4, 4)),
    Case(2, 3, 2, (5, 6), (3, 3), padding=(4, 3)),
    Case(2, 3, 2, (3, 3), (5, 5), padding=(3, 3), dilation=(1, 1)),
    Case(2, 8, 2, (10, 10), (3, 3), padding=(2, 2), dilation=(2, 2)),
    Case(2, 2, 8, (10, 10), (3, 3), padding=(1, 1)),
    Case(0, 3, 4, (6, 6), (3, 3), padding=(1, 1)),
    Case(4, 3, 5, (30,), (4,), stride=(1,), padding=(2,), dilation=(3,)),
    Case(4, 2, 4, (31,), (3,), stride=(2,), padding=(1,), dilation=(1,), groups=2),
    Case(2, 2, 3, (5, 6, 7), (3, 2, 3), stride=(1, 1, 1), padding=(1, 1, 1), dilation=(1, 1, 1)),
    Case(2, 2, 4, (6, 5, 9), (2, 3, 2), stride=(2, 1, 3), padding=(1, 0, 1), dilation=(1, 2, 1), groups=2),
    Case(2, 5, 5, (19, 23), (3, 3), stride=(2, 2), padding=(1, 1), groups=5),
    Case(3, 6, 6, (14, 9), (5, 5), padding=(2, 2), groups=6),
    Case(7, 4, 4, (5, 5), (5, 5), stride=(3, 2), padding=(2, 2), dilation=(1, 2), groups=4),
    Case(2, 3, 6, (12, 12), (3, 3), stride=(1, 2), padding=(0, 1), groups=3),
    Case(2, 4, 3, (20, 24), (9, 9), padding=(4, 4)),
    Case(2, 3, 9, (36, 36), (8, 8), stride=(4, 4)),
    Case(3, 5, 12, (20, 20), (4, 4), stride=(2, 2)),
    Case(13, 6, 17, (7, 7), (3, 3), padding=(1, 1)),
    Case(2, 4, 8, (12, 12), (3, 3), padding=(12, 12), dilation=(12, 12)),
    Case(2, 4, 8, (11, 13), (3, 3), padding=(30, 18), dilation=(30, 18)),
    Case(2, 3, 9, (11, 14), (3, 3), padding=(6, 7), dilation=(6, 7)),
    Case(2, 9, 3, (11, 14), (3, 3), padding=(6, 0), dilation=(6, 3)),
    Case(1, 4, 8, (1, 16), (1, 4), stride=(1, 2), padding=(0, 3), dilation=(1, 2)),
    Case(1, 1, 1, (7, 5), (3, 5), stride=(3, 4), padding=(1, 2), dilation=(3, 1)),  # a first row of padding alone
    *BY_CHANNELS,
    *BY_CELLS,
    *DEPTHWISE,
    Case(2, 16, 8, (40, 48), (3, 3), padding=(1, 1)),
]


def in_both(cases: list[Case]) -> list[Any]:
    """Cases in both dtypes. Each number of vectors of channels has kernels of its own, which take longest to
    compile: the quick suite has them all in float32, and of float64 those of the first cases."""
    left = BY_CHANNELS[2:]
    return [
        pytest.param(case, dtype, marks=pytest.mark.slow if dtype == "float64" and case in left else ())
        for case in cases
        for dtype in ("float32", "float64")
    ]


def windows(case: Case, x: Array) -> Array:
    """[n, c, *k, *o]: the cells of x that each window has."""
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in case.padding)])
    out = np.zeros((*x.shape[:2], *case.kernel, *case.counts), x.dtype)
    for cell in itertools.product(*map(range, case.kernel)):
        along: Any = (
            slice(j * d, j * d + (count - 1) * s + 1, s)
            for j, d, count, s in zip(cell, case.dilation, case.counts, case.stride)
        )
        into: Any = (slice(None), slice(None), *cell)
        out[into] = padded[:, :, *along]
    return out


def definition(case: Case, kernel: Array, x: Array, g: Array) -> tuple[Array, Array, Array]:
    """conv(kernel, x) and the cotangents of kernel and x, by sums over the windows in float64."""
    kernel, x, g = (a.astype(np.float64) for a in (kernel, x, g))
    groups = case.groups
    images = len(x)
    cells = int(np.prod(case.kernel))
    seen = windows(case, x).reshape(images, groups, case.channels_in // groups, cells, int(np.prod(case.counts)))
    by_group = kernel.reshape(groups, case.channels_out // groups, -1, cells)
    cotangent = g.reshape(images, groups, case.channels_out // groups, int(np.prod(case.counts)))
    y = np.einsum("gock,ngckw->ngow", by_group, seen).reshape(images, case.channels_out, *case.counts)
    dkernel = np.einsum("ngow,ngckw->gock", cotangent, seen).reshape(kernel.shape)
    shares = np.einsum("gock,ngow->ngckw", by_group, cotangent)
    shares = shares.reshape(images, case.channels_in, *case.kernel, *case.counts)
    padded = np.zeros((images, case.channels_in, *(n + 2 * p for n, p in zip(case.cells, case.padding))))
    for cell in itertools.product(*map(range, case.kernel)):
        along: Any = (
            slice(j * d, j * d + (count - 1) * s + 1, s)
            for j, d, count, s in zip(cell, case.dilation, case.counts, case.stride)
        )
        padded[:, :, *along] += shares[:, :, *cell]
    inside: Any = (slice(p, p + n) for p, n in zip(case.padding, case.cells))
    return y, dkernel, padded[:, :, *inside]


def operands(case: Case, dtype: str) -> tuple[Array, Array, Array, Array, Array]:
    """kernel, the biases of conv and of its adjoint, x, and a cotangent."""
    rng = np.random.default_rng(3)
    shapes = (
        (case.channels_out, case.channels_in // case.groups, *case.kernel),
        (case.channels_out,),
        (case.channels_in,),
        (case.images, case.channels_in, *case.cells),
        (case.images, case.channels_out, *case.counts),
    )
    kernel, bias, other, x, g = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    return kernel, bias, other, x, g


def column(bias: Array, rank: int) -> Array:
    return bias.reshape(-1, *(1,) * rank)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Machine code also where it does not pay."""
    monkeypatch.setattr(convolution_choice, "_WORTH_A_CALL", 0)
    convolution_choice.choose_eager_algorithm.cache_clear()
    yield
    convolution_choice.choose_eager_algorithm.cache_clear()


def plans_anew() -> None:
    for module in (channel_steps, convolution_choice, convolution_steps, depthwise_steps, direct_steps):
        for function in vars(module).values():
            if hasattr(function, "cache_clear") and function.__module__ == module.__name__:
                function.cache_clear()


def without_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution_choice, "has_registers", lambda: False)


def set_budget(monkeypatch: pytest.MonkeyPatch, budget: int | None) -> None:
    """The room of a block, so that small cases have many."""
    places: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (convolution_steps, ("_COLUMN_BYTES",)),
        (direct_steps, ("_BLOCK_BYTES", "_GRAD_BYTES")),
        (channel_steps, ("_BLOCK_BYTES", "_CELL_BLOCK_BYTES", "_PANEL_BYTES")),
        (depthwise_steps, ("_BLOCK_BYTES",)),
    )
    for module, names in places if budget is not None else ():
        for name in names:
            monkeypatch.setattr(module, name, budget)


@pytest.mark.parametrize("budget", [None, 1, 3000])
@pytest.mark.parametrize(("case", "dtype"), in_both(CASES), ids=str)
def test_convolution_in_blocks_of_any_size_equals_definition(
    case: Case, dtype: str, budget: int | None, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_budget(monkeypatch, budget)
    plans_anew()
    try:
        require_definition(case, dtype)
    finally:
        plans_anew()


def require_definition(case: Case, dtype: str) -> None:
    kernel, bias, other, x, g = operands(case, dtype)
    y, dkernel, dx = definition(case, kernel, x, g)
    near: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-4} if dtype == "float32" else {"rtol": 1e-11, "atol": 1e-11}
    rank = len(case.kernel)
    out = convolution.fast_conv(kernel, x, has_bias=False, **case.window)
    assert out.dtype == x.dtype
    np.testing.assert_allclose(out, y, **near)
    out = convolution.fast_conv(kernel, bias, x, has_bias=True, **case.window)
    np.testing.assert_allclose(out, y + column(bias, rank), **near)
    out = convolution.fast_conv_kernel_grad(x, g, kernel=case.kernel, **case.window)
    np.testing.assert_allclose(out, dkernel, **near)
    back = {"output_padding": case.unreached, **case.window}
    np.testing.assert_allclose(convolution.fast_conv_transpose(kernel, g, has_bias=False, **back), dx, **near)
    out = convolution.fast_conv_transpose(kernel, other, g, has_bias=True, **back)
    np.testing.assert_allclose(out, dx + column(other, rank), **near)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_conv_without_registers_equals_definition(case: Case, always: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a processor runs that has not the registers for tiles."""
    without_registers(monkeypatch)
    plans_anew()
    try:
        require_definition(case, "float32")
    finally:
        plans_anew()


@pytest.mark.parametrize("registers", [True, False], ids=["with registers", "without"])
@pytest.mark.parametrize("case", [case for case in CASES[:-1] if case.images], ids=str)
def test_nonfinite_weight_meets_padding_in_conv_and_not_in_adjoint(
    case: Case, registers: bool, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An infinite weight makes nan of them; the adjoint may be computed as a conv, which has padding of its own."""
    if not registers:
        without_registers(monkeypatch)
    plans_anew()
    kernel, _, other, x, g = operands(case, "float32")
    back = {"output_padding": case.unreached, "has_bias": True, **case.window}
    try:
        for operand, (place, value) in itertools.product((kernel, x, g), ((0, np.nan), (-1, np.inf))):
            kept, operand.flat[place] = operand.flat[place], value
            with np.errstate(invalid="ignore"):
                y, dkernel, dx = definition(case, kernel, x, g)
                dx += column(other, len(case.kernel))
                for kernels in (convolution.FAST_KERNELS, convolution.KERNELS):
                    for found, right in (
                        (kernels[CONV](kernel, x, has_bias=False, **case.window), y),
                        (kernels[CONV_KERNEL_GRAD](x, g, kernel=case.kernel, **case.window), dkernel),
                        (kernels[CONV_TRANSPOSE](kernel, other, g, **back), dx),
                    ):
                        np.testing.assert_allclose(found, right, rtol=1e-4, atol=2e-4)
            operand.flat[place] = kept
    finally:
        plans_anew()


@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=str)
def test_convolution_of_strided_or_single_images_equals_packed(case: Case, always: None) -> None:
    kernel, bias, _, x, g = operands(case, "float32")
    back = {"output_padding": case.unreached, **case.window}
    y = convolution.fast_conv(kernel, bias, x, has_bias=True, **case.window)
    dkernel = convolution.fast_conv_kernel_grad(x, g, kernel=case.kernel, **case.window)
    dx = convolution.fast_conv_transpose(kernel, g, has_bias=False, **back)

    def strided(a: Array) -> Array:
        wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)[..., ::2]
        wide[...] = a
        return np.asfortranarray(wide).transpose() if a.ndim < 2 else wide

    def unaligned(a: Array) -> Array:
        raw = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
        raw[...] = a
        return raw

    for other in (strided, unaligned):
        k, b, z, h = map(other, (kernel, bias, x, g))
        np.testing.assert_array_equal(convolution.fast_conv(k, b, z, has_bias=True, **case.window), y)
        out = convolution.fast_conv_kernel_grad(z, h, kernel=case.kernel, **case.window)
        np.testing.assert_array_equal(out, dkernel)
        np.testing.assert_array_equal(convolution.fast_conv_transpose(k, h, has_bias=False, **back), dx)
    alone = convolution.fast_conv(kernel, bias, x[1], has_bias=True, **case.window)
    np.testing.assert_allclose(alone, y[1], rtol=1e-5, atol=1e-5)
    alone = convolution.fast_conv_transpose(kernel, g[1], has_bias=False, **back)
    np.testing.assert_allclose(alone, dx[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("channels", [4, 32])
def test_kernel_grad_with_unreached_cells_equals_definition(channels: int, always: None) -> None:
    """As in the result of a transposed convolution whose output padding is at least its stride."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 14, 9)).astype(np.float32)
    g = rng.standard_normal((2, channels, 7, 7)).astype(np.float32)
    how: dict[str, Any] = {"kernel": (2, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (4, 3), "groups": 1}
    right = np.einsum("nohw,nchw->oc", g, x[:, :, :7, :7]), np.einsum("nohw,nchw->oc", g, x[:, :, 4:11, :7])
    found = convolution.fast_conv_kernel_grad(x, g, **how)
    np.testing.assert_allclose(found[..., 0], np.stack(right, -1), rtol=1e-4, atol=1e-4)


def at_the_end_of_memory(a: Array) -> Array:
    """A copy behind which a page begins that must not be read."""
    room = -(-max(a.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, room + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + room), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    out = np.frombuffer(pages, a.dtype, a.size, room - a.nbytes).reshape(a.shape)
    out[...] = a
    return out


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are protected by Linux's call")
@pytest.mark.parametrize(("case", "dtype"), in_both([case for case in CASES if case.images]), ids=str)
def test_convolution_at_the_end_of_memory_reads_no_further(case: Case, dtype: str, always: None) -> None:
    kernel, bias, other, x, g = map(at_the_end_of_memory, operands(case, dtype))
    back = {"output_padding": case.unreached, **case.window}
    convolution.fast_conv(kernel, bias, x, has_bias=True, **case.window)
    convolution.fast_conv_kernel_grad(x, g, kernel=case.kernel, **case.window)
    convolution.fast_conv_transpose(kernel, other, g, has_bias=True, **back)


def shared_among(count: int) -> Callable[..., None]:
    """What runs steps as so many workers would, the last one's tasks first."""
    integer = ctypes.c_int64

    def run(steps: tuple[KernelCall, ...], memory: Any) -> None:
        for step in steps:
            function = ctypes.CFUNCTYPE(None, integer, integer, integer, integer)(step.kernel.address)
            for worker in reversed(range(count)):
                part = step.tasks * worker // count, step.tasks * (worker + 1) // count
                function(*part, worker, step.arguments.ctypes.data)

    return run


@pytest.mark.parametrize("case", [*BY_CHANNELS, *BY_CELLS, *DEPTHWISE], ids=str)
def test_convolution_on_other_workers_has_the_same_bits(
    case: Case, always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, bias, other, x, g = operands(case, "float32")
    back = {"output_padding": case.unreached, **case.window}
    found = []
    for count in (1, 3):
        monkeypatch.setattr(convolution, "workers", lambda count=count: count)
        monkeypatch.setattr(convolution, "_do", shared_among(count))
        with one_thread:
            results = (
                convolution.fast_conv(kernel, bias, x, has_bias=True, **case.window),
                convolution.fast_conv_kernel_grad(x, g, kernel=case.kernel, **case.window),
                convolution.fast_conv_transpose(kernel, other, g, has_bias=True, **back),
            )
        found.append([each.tobytes() for each in results])
    assert found[0] == found[1]


def test_kernel_grad_of_each_run_has_the_same_bits() -> None:
    case = Case(16, 8, 16, (16, 16), (3, 3), padding=(1, 1))
    _, _, _, x, g = operands(case, "float32")
    first, *others = (
        convolution.fast_conv_kernel_grad(x, g, kernel=case.kernel, **case.window).tobytes() for _ in range(5)
    )
    assert others == [first] * 4


def test_convolution_in_a_signal_handler_leaves_the_other_its_memory(
    always: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, larger = (Case(2, 8, 8, (side, side), (3, 3), padding=(1, 1)) for side in (16, 96))
    kernel, _, _, x, _ = operands(case, "float32")
    wanted = convolution.fast_conv(kernel, x, has_bias=False, **case.window)
    release_workspace()
    run, seen = convolution._do, list[Any]()

    def interrupted(steps: Any, memory: Any) -> None:
        seen.append(weakref.ref(memory.memory))
        if len(seen) == 1:
            other, _, _, y, _ = operands(larger, "float32")
            convolution.fast_conv(other, y, has_bias=False, **larger.window)
            release_workspace()
        run(steps, memory)

    monkeypatch.setattr(convolution, "_do", interrupted)
    np.testing.assert_array_equal(convolution.fast_conv(kernel, x, has_bias=False, **case.window), wanted)
    assert len(seen) == 2 and seen[0]() is None  # kept as long as it was used


# NumPy kernels take all images at once, or a row of one image at a time.

BLOCK_CASES: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((4, 3, 3, 2), (3, 3, 9, 7), {"stride": (1, 1), "padding": (1, 0), "dilation": (1, 1), "groups": 1}),
    ((4, 1, 2, 3), (2, 2, 11, 8), {"stride": (2, 3), "padding": (2, 1), "dilation": (3, 1), "groups": 2}),
    ((2, 2, 3), (5, 2, 12), {"stride": (3,), "padding": (2,), "dilation": (2,), "groups": 1}),
    ((2, 1, 2, 1, 2), (2, 2, 5, 4, 3), {"stride": (1, 2, 1), "padding": (1, 0, 1), "dilation": (2, 1, 1), "groups": 2}),
]


def _results(
    kernel: Any, bias: Any, x: Any, g: Any, unreached: tuple[int, ...], window: dict[str, Any]
) -> tuple[Any, ...]:
    return (
        convolution.conv(kernel, bias, x, has_bias=True, **window),
        convolution.conv_kernel_grad(x, g, kernel=kernel.shape[2:], **window),
        convolution.conv_transpose(kernel, g, output_padding=unreached, has_bias=False, **window),
    )


@pytest.mark.parametrize(("kernel_shape", "x_shape", "window"), BLOCK_CASES)
def test_numpy_convolution_in_small_blocks_equals_whole(
    kernel_shape: tuple[int, ...], x_shape: tuple[int, ...], window: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    kernel, bias, x = (rng.standard_normal(shape) for shape in (kernel_shape, kernel_shape[:1], x_shape))
    out = convolution.conv(kernel, bias, x, has_bias=True, **window)
    g = rng.standard_normal(out.shape)
    unreached = tuple(
        n + 2 * p - d * (k - 1) - 1 - (count - 1) * s
        for n, count, k, s, p, d in zip(
            x_shape[2:], out.shape[2:], kernel_shape[2:], window["stride"], window["padding"], window["dilation"]
        )
    )
    whole = _results(kernel, bias, x, g, unreached, window)
    monkeypatch.setattr(convolution, "_room", lambda kernel_bytes: 1)
    for together, apart in zip(whole, _results(kernel, bias, x, g, unreached, window)):
        np.testing.assert_allclose(apart, together, rtol=1e-12, atol=1e-12)


def geometry_of(case: Case) -> ConvGeometry:
    return ConvGeometry(
        "float32", case.images, case.channels_in, case.channels_out, case.groups, case.cells, case.kernel,
        case.counts, case.stride, case.padding, case.dilation,
    )  # fmt: skip


_CHANNELS = (Algorithm.CHANNELS, Algorithm.CELLS)


@pytest.mark.parametrize(
    ("algorithms", "which", "cases", "least"),
    [
        pytest.param(_CHANNELS, Pass.FORWARD, BY_CHANNELS, 5, id="channels"),
        pytest.param(_CHANNELS, Pass.KERNEL_GRAD, BY_CHANNELS, 5, id="channels-grad"),
        *[pytest.param(_CHANNELS[1:], which, BY_CELLS, 5, id=f"cells-{which.name}") for which in Pass],
        *[pytest.param((Algorithm.DIRECT,), which, CASES, 10, id=f"direct-{which.name}") for which in Pass],
        *[pytest.param((Algorithm.DEPTHWISE,), which, DEPTHWISE, 8, id=f"depthwise-{which.name}") for which in Pass],
    ],
)
def test_choice_takes_each_algorithm_for_some_cases(
    algorithms: tuple[Algorithm, ...], which: Pass, cases: list[Case], least: int
) -> None:
    if not convolution_choice.has_registers():
        pytest.skip("the processor has too few registers")
    chosen = [choose_algorithm(which, geometry_of(case)) for case in cases]
    assert sum(each in algorithms for each in chosen) >= least, chosen
