"""What kernels take when nothing is computed, against what they take when they compute: strides, views, and bytes."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opstage import Options, optim
from opstage.compiler.codegen.cpu.kernels import fused
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.interpreters.eager_cpu.tally import KernelMemory, kernel_memory
from opstage.interpreters.registry import make_interpreter
from opstage.models import model
from opstage.ops import derived
from opstage.ops.activation import SILU
from opstage.ops.elementwise import SIGMOID
from opstage.ops.primitive import Primitive, Static
from opstage.ops.trees import flatten, unflatten
from opstage.ops.types import TensorType
from opstage.optim import Optimizer
from opstage.training.memory import model_memory
from opstage.transforms.derivatives import run_on_tape
from opstage.transforms.transparent import Transparent
from tests.conformance.harness import inputs, program_of
from tests.graph.counting_allocator import Counted
from tests.memory.measured import forget_workspace
from tests.samples import SAMPLES
from tests.samples.parts import all_samples
from tests.samples.sample import Sample


def strides_of(array: Any) -> tuple[int, ...] | None:
    """In bytes; None where they are row-major."""
    return None if array.flags.c_contiguous else array.strides


def counted(options: Options, primitive: Primitive, refs: tuple[Any, ...], static: Static) -> KernelMemory | None:
    """What the kernel of an op takes; None for a composite without one."""
    kernel = kernel_table(options.dtype, options.fast_kernels).get(primitive)
    if kernel is None:
        return None
    return kernel_memory(kernel, [TensorType(r.shape, r.dtype) for r in refs], [strides_of(r) for r in refs], static)


def buffer(array: Any) -> Any:
    """The array that owns the elements."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


class Compared(Transparent[Any]):
    """Holds every op's results to what was counted without them."""

    def __init__(self, options: Options):
        super().__init__(make_interpreter(options))
        self.options = options
        self.compared = 0

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        said = counted(self.options, primitive, refs, static)
        if said is None:
            return (
                self.inner.bind(primitive, refs, static) if primitive.core else self.decompose(primitive, refs, static)
            )
        outs = self.inner.bind(primitive, refs, static)
        assert len(said.results) == len(outs), primitive
        for out, result in zip(outs, said.results):
            assert result.type == TensorType(out.shape, out.dtype), (primitive, static)
            if out.size > 1:
                assert _telling(out.shape, result.strides) == _telling(out.shape, strides_of(out)), (primitive, static)
                owner = [i for i, ref in enumerate(refs) if buffer(ref) is buffer(out)]
                assert (result.of in owner) if owner else result.of is None, (primitive, static)
        self.compared += 1
        return outs


def _telling(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Any:
    """Strides along axes of one element say nothing."""
    return None if strides is None else [s for n, s in zip(shape, strides) if n > 1]


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("sample", all_samples(SAMPLES))
def test_results_of_each_sample_have_the_counted_layout(sample: Sample, fast: bool) -> None:
    """In the op itself, and in its vjp, whose operands are often views."""
    ops = Compared(Options(fast_kernels=fast))
    values, structure = flatten(inputs(sample, "float32"))
    turned = [np.asarray(v).T.copy().T for v in values]  # the same tensors, their axes in memory the other way round
    for arrays in (values, turned):

        def program(base: Any, *refs: Any) -> tuple[Any, ...]:
            arguments = unflatten(structure, refs)
            tape, nodes, outputs, _ = run_on_tape(base, program_of(sample), arguments, (True,) * len(arguments))
            flat = [node for group in nodes for node in group]
            floats = [o for o in outputs if o.dtype.kind == "f" and o.record is not None]
            tape.pull(floats, [np.ones(o.shape, o.dtype) for o in floats], flat)
            return tuple([o.value for o in outputs])

        ops.execute_each(program, tuple([ops.put(v) for v in arrays]))
    assert ops.compared


def test_prediction_of_terabytes_takes_no_memory() -> None:
    """A step that would take seven terabytes."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert model_memory(model("mlp"), optim.sgd(lr=0.1)).at(B=10**9).peak > 7e12
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


def test_kernel_that_runs_while_it_is_counted_computes() -> None:
    """The same function, while what it takes is counted and afterwards."""
    kernel = kernel_table("float32", False)[SIGMOID]
    x = np.log(np.array([[1, 3]], np.float32))
    found = []

    def inside(y: Any) -> Any:
        found.append(kernel(x))
        return y

    type_ = TensorType((4, 5), np.dtype(np.float32))
    assert kernel_memory(inside, [type_], [None], {}).workspace == 0
    assert kernel_memory(kernel, [type_], [None], {}).results[0].nbytes == 80
    assert [y.tolist() for y in (*found, kernel(x))] == 2 * [[[0.5, 0.75]]]


def test_unknown_numpy_function_is_refused() -> None:
    type_ = TensorType((4, 5), np.dtype(np.float32))
    with pytest.raises(NotImplementedError, match=r"memory of np.partition.*tally/functions.py"):
        kernel_memory(lambda x: np.partition(x, 1), [type_], [None], {})


def test_views_of_an_operand_share_its_memory() -> None:
    """A formula's layouts are those of NumPy: views of views, and copies where there can be no view."""
    type_ = TensorType((2, 3, 4), np.dtype(np.float32))
    call = kernel_memory(lambda x: (x, x.T, x.T.reshape(-1), x[:, 1], x + x.T.reshape(x.shape)), [type_], [None], {})
    assert [result.of for result in call.results] == [0, 0, None, 0, None]
    assert [result.nbytes for result in call.results] == [0, 0, 96, 0, 96]
    assert [result.strides for result in call.results] == [None, (4, 16, 48), None, (48, 4), None]
    assert call.temporary == (96,)


def by_its_loops(x: Any) -> Any:
    """A kernel that has its loops generated when it is called."""
    kernel: Any = fused(SILU, (TensorType(x.shape, x.dtype),), {})
    return kernel(x)[0] if x.size else np.zeros(0)


by_its_loops.__module__ = "opstage.interpreters.eager_cpu"  # as kernels are


def test_generated_loops_within_a_counted_kernel_do_nothing() -> None:
    x = np.ones((4, 5), np.float32)
    call = kernel_memory(by_its_loops, [TensorType(x.shape, x.dtype)], [(4, 16)], {})
    assert (call.results[0].nbytes, call.temporary) == (80, (80,))  # a row-major copy beside the result
    assert by_its_loops(x) == pytest.approx(x / (1 + np.exp(-x)))


def test_kernel_that_reads_elements_is_refused() -> None:
    with pytest.raises(TypeError, match="arrays without elements"):
        kernel_memory(lambda x: np.asarray(x), [TensorType((4, 5), np.dtype(np.float32))], [None], {})


# Bytes ----------------------------------------------------------------------------------------------------------------


_RNG = np.random.default_rng(0)
_SMALL = 8192  # bytes of vectors, and of numbers beside them, of which the rules do not speak


def floats(*shape: int) -> Any:
    return _RNG.uniform(0.1, 0.9, shape).astype(np.float32)


def integers(most: int, *shape: int) -> Any:
    return _RNG.integers(0, most, shape)


Program = Callable[..., Any]
NAMES = ["neg", "abs", "sqrt", "exp", "log", "inv", "tanh", "sigmoid", "softplus", "erf", "relu", "silu", "gelu", "sum"]
X, STACK, IMAGES = floats(64, 2000), floats(64, 50, 40), floats(20, 16, 12, 12)
LARGE = floats(20, 8, 24, 24)

CASES: dict[str, tuple[Program, tuple[Any, ...]]] = {
    **{name: (lambda o, x, name=name: getattr(o, name)(x), (X,)) for name in NAMES},
    **{f"pow {e}": (lambda o, x, e=e: o.pow(x, exponent=e), (X,)) for e in (2, -1, 0.5, -0.5, 3)},
    "clamp": (lambda o, x: o.clamp(x, lo=0.2, hi=0.5), (X,)),
    "safe_log": (lambda o, x: o.safe_log(x, eps=0.1), (X,)),
    "select": (lambda o, x, y: o.select(o.less(x, y), x, y), (X, floats(64, 2000))),
    "iota": (lambda o, x: o.mul(x, o.cast(o.iota(shape=x.shape, axis=1), dtype="float32")), (X,)),
    **{f"softmax {a}": (lambda o, x, a=a: o.softmax(x, axis=a), (STACK,)) for a in range(3)},
    **{f"log_softmax {a}": (lambda o, x, a=a: o.log_softmax(x, axis=a), (STACK,)) for a in range(3)},
    **{f"reduce_sum {a}": (lambda o, x, a=a: o.reduce_sum(x, axis=a), (STACK,)) for a in range(3)},
    "reduce_mean": (lambda o, x: o.reduce_mean(x, axis=1), (STACK,)),
    "reduce_max": (lambda o, x: o.reduce_max(x, axis=1), (STACK,)),
    "argmax": (lambda o, x: o.argmax(x, axis=1), (STACK,)),
    "argmax of rows": (lambda o, x: o.argmax(x, axis=2), (STACK,)),
    "reshape of a view": (lambda o, x: o.flatten(o.permute(x, axes=(2, 0, 1))), (STACK,)),
    "pad": (lambda o, x: o.pad(x, padding=((1, 1), (2, 3))), (X,)),
    "concat": (lambda o, x: o.concat([x, x], axis=0), (X,)),
    "gather_rows": (lambda o, x, i: o.gather_rows(x, i), (floats(100, 64), integers(100, 30, 20))),
    "gather_rows, zero": (lambda o, x, i: o.gather_rows(x, i, mode="zero"), (floats(100, 64), integers(100, 30, 20))),
    "gather_rows, int32": (
        lambda o, x, i: o.gather_rows(x, i),
        (floats(100, 64), integers(100, 30, 20).astype(np.int32)),
    ),
    "gather_vec": (lambda o, x, i: o.gather_vec(x, i), (floats(1000), integers(1000, 9000))),
    "matmul": (lambda o, x, y: o.matmul(x, y), (floats(300, 200), floats(200, 100))),
    "bmm": (lambda o, x, y: o.bmm(x, y), (floats(10, 30, 200), floats(10, 200, 100))),
    "linear": (lambda o, w, b, x: o.linear(w, b, x), (floats(100, 200), floats(100), floats(30, 20, 200))),
    "linear of a view": (
        lambda o, w, x: o.linear(w, None, o.permute(x, axes=(1, 0, 2))),
        (floats(100, 200), floats(30, 20, 200)),
    ),
    "conv": (lambda o, k, b, x: o.conv(k, b, x, padding=1), (floats(16, 8, 3, 3), floats(16), LARGE)),
    "conv, strides": (lambda o, k, x: o.conv(k, None, x, stride=2), (floats(16, 8, 3, 3), LARGE)),
    "conv, pointwise": (lambda o, k, x: o.conv(k, None, x), (floats(16, 8, 1, 1), LARGE)),
    "conv, sequence": (lambda o, k, x: o.conv(k, None, x, padding=2), (floats(16, 8, 5), floats(20, 8, 240))),
    "conv, groups": (lambda o, k, x: o.conv(k, None, x, groups=4), (floats(16, 2, 3, 3), LARGE)),
    "conv_transpose": (lambda o, k, x: o.conv_transpose(k, None, x, stride=2), (floats(16, 8, 2, 2), IMAGES)),
    "conv_transpose, turned": (lambda o, k, x: o.conv_transpose(k, None, x), (floats(16, 8, 3, 3), IMAGES)),
    "max_pool": (lambda o, x: o.max_pool2d(x, kernel=2), (LARGE,)),
    "max_pool, padding": (lambda o, x: o.max_pool(x, kernel=(3, 3), stride=2, padding=1), (LARGE,)),
    "avg_pool": (lambda o, x: o.avg_pool2d(x, kernel=2), (LARGE,)),
    "layer_norm": (lambda o, x, g: o.layer_norm(x, g, g), (floats(64, 30, 100), floats(100))),
    "rms_norm": (lambda o, x, g: o.rms_norm(x, g), (floats(64, 30, 100), floats(100))),
    "group_norm": (lambda o, x, g: o.group_norm(x, g, g, groups=4), (IMAGES, floats(16))),
    "batch_norm": (lambda o, x, g: o.batch_norm(x, g, g)[0], (IMAGES, floats(16))),
    "batch_norm of rows": (lambda o, x, g: o.batch_norm(x, g, g)[0], (floats(2000, 16), floats(16))),
    "batch_norm_eval": (lambda o, x, g: o.batch_norm_eval(x, g, g, g, g), (IMAGES, floats(16))),
    "attention": (
        lambda o, q, k, v: o.scaled_dot_product_attention(q, k, v, causal=True),
        (floats(4, 3, 60, 16), floats(4, 3, 60, 16), floats(4, 3, 60, 16)),
    ),
    "attention, wide": (
        lambda o, q, k, v: o.scaled_dot_product_attention(q, k, v),
        (floats(4, 3, 20, 64), floats(4, 3, 20, 64), floats(4, 3, 20, 64)),
    ),
    "attention, some heads at a time": (
        lambda o, q: o.scaled_dot_product_attention(q, q, q, causal=True),
        (floats(2, 3, 300, 8),),
    ),
    "attention, some queries at a time": (
        lambda o, q, k: o.scaled_dot_product_attention(q, k, k),
        (floats(2, 900, 8), floats(2, 700, 8)),
    ),
    "attention, some queries at a time, causal": (
        lambda o, q, m: o.scaled_dot_product_attention(q, q, q, m, causal=True),
        (floats(2, 900, 8), np.ones((900, 1), np.bool_)),
    ),
    "attention, mask": (
        lambda o, q, m: o.scaled_dot_product_attention(q, q, q, m),
        (floats(4, 3, 60, 16), np.ones((60, 60), np.bool_)),
    ),
    "mse_loss": (lambda o, x, y: o.mse_loss(x, y), (X, floats(64, 2000))),
    "cross_entropy": (lambda o, x, y: o.cross_entropy(x, y), (floats(640, 50), integers(50, 640))),
    "cross_entropy, images": (
        lambda o, x, y: o.cross_entropy(x, y, label_smoothing=0.1),
        (floats(20, 10, 30, 30), integers(10, 20, 30, 30)),
    ),
    "rand_uniform": (lambda o, x: o.mul(x, o.rand_uniform(shape=x.shape)), (X,)),
    "rand_normal": (lambda o, x: o.mul(x, o.rand_normal(shape=x.shape)), (X,)),
    "dropout": (lambda o, x: derived.dropout(o, x, 0.3, True), (X,)),
}

OPTIMIZERS: tuple[Optimizer, ...] = (
    optim.sgd(lr=0.1),
    optim.sgd(lr=0.1, weight_decay=0.1),
    optim.momentum(lr=0.1, weight_decay=0.1),
    optim.nesterov(lr=0.1),
    optim.adagrad(lr=0.1),
    optim.rmsprop(lr=0.1),
    optim.adam(lr=0.1, weight_decay=0.1),
    optim.adamw(lr=0.1),
    optim.adamw(lr=0.1, weight_decay=0.0),
    optim.adadelta(lr=0.1),
    optim.muon(lr=0.1),
)


class Weighed(Transparent[Any]):
    """Compares, op by op, what a kernel takes with what is counted without a run."""

    def __init__(self, options: Options):
        super().__init__(make_interpreter(options))
        self.options = options

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        said = counted(self.options, primitive, refs, static)
        if said is None:
            return (
                self.inner.bind(primitive, refs, static) if primitive.core else self.decompose(primitive, refs, static)
            )
        self.inner.bind(primitive, refs, static)  # machine code is made
        forget_workspace()
        with Counted() as count:
            outs = self.inner.bind(primitive, refs, static)
            found = count.peak
        results = sum([result.nbytes for result in said.results])
        assert results + said.workspace == pytest.approx(found, rel=0.08, abs=_SMALL), primitive
        return outs


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_kernel_of_each_op_takes_the_counted_bytes(case: str, fast: bool) -> None:
    """In the op itself and in its vjp."""
    call, arrays = CASES[case]

    def program(base: Any, *refs: Any) -> tuple[Any, ...]:
        tape, nodes, (out,), _ = run_on_tape(base, call, refs, (True,) * len(refs))
        if out.record is not None:
            tape.pull([out], [np.ones(out.shape, out.dtype)], [node for group in nodes for node in group])
        return (out.value,)

    ops = Weighed(Options(fast_kernels=fast))
    ops.execute_each(program, tuple([ops.put(array) for array in arrays]))


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "plain"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: f"{o.name} {getattr(o, 'weight_decay', 0)}")
def test_update_of_each_optimizer_takes_the_counted_bytes(optimizer: Optimizer, fast: bool) -> None:
    slots = optimizer.slots((64, 2000), np.dtype(np.float32), "p")
    ops = Weighed(Options(fast_kernels=fast))

    def program(base: Any, p: Any, g: Any, *slots: Any) -> tuple[Any, ...]:
        scalars = {name: base.const(value) for name, value in optimizer.scalars(1).items()}
        new, held = optimizer.updater(base, p, g, slots, scalars)
        return (new, *held)

    ops.execute_each(program, (X, floats(64, 2000), *[floats(*map(int, slot.shape)) for slot in slots]))
