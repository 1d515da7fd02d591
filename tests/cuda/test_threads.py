"""Programs in several threads on one device, programs on several devices, and processes that were forked from them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.probe import find_device
from opstage.interpreters.eager_cuda import CudaOps
from opstage.ops.errors import ProgramError, RangeError, UsageError
from opstage.options import Options
from tests.compiler.gpu.test_threads import impatient, in_threads  # noqa: F401
from tests.optim.updates import sgd_update

CUDA = Options(device="cuda")


def loss(ops: Any, params: Any, idx: Any, y: Any) -> Any:
    x = ops.gather_rows(params["table"], idx)
    return ops.cross_entropy(ops.linear(params["w"], None, x), y)


def trainer(seed: int, options: Options) -> Any:
    rng = np.random.default_rng(seed)
    params = {"table": rng.standard_normal((5, 3)), "w": rng.standard_normal((4, 3))}
    return opstage.scalar_trainer(loss, params, options=options)


def batch(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(100 + seed)
    return rng.integers(0, 5, 4 + seed), rng.integers(0, 4, 4 + seed)


# Threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_trainers_in_threads_end_where_they_end_alone(backend: str) -> None:
    """Each of another seed and precision; on a device, in the middle of a step of another one, nothing is shared."""
    threads, steps = 3, 2
    options = [CUDA.replace(backend=backend, matmul_precision=p) for p in ("fp32", "tf32", "bf16")]
    expected, found = [], {}

    def train(own: int) -> Any:
        made, optimizer = trainer(own, options[own]), opstage.optim.adamw(lr=0.1)
        state = made.init_optim(optimizer)
        losses = []
        for _ in range(steps):
            result = made.advance(optimizer, state, *batch(own))
            losses.append(float(result.loss))
        return made.get_params(), losses

    for own in range(threads):
        expected.append(train(own))
    in_threads(*[lambda own=own: found.update({own: train(own)}) for own in range(threads)])  # type: ignore[misc]
    for own in range(threads):
        assert found[own][1] == expected[own][1]
        for name, value in expected[own][0].items():
            np.testing.assert_array_equal(found[own][0][name], value)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_runs_of_one_program_in_threads_give_each_its_own(backend: str) -> None:
    options = CUDA.replace(backend=backend)

    def program(ops: Any, x: Any) -> Any:
        return ops.relu(x) + ops.sum(x)

    def run(own: int) -> None:
        for i in range(6):
            x = np.random.default_rng([own, i]).standard_normal((2, 3)).astype(np.float32)
            np.testing.assert_allclose(
                opstage.run(program, x, options=options), np.maximum(x, 0) + x.sum(), rtol=1e-5, atol=1e-6
            )

    in_threads(*[lambda own=own: run(own) for own in range(3)])  # type: ignore[misc]


def test_an_index_that_one_program_got_wrong_is_told_to_that_one_alone() -> None:
    device = find_device()
    one, other = CudaOps(CUDA, device), CudaOps(CUDA, device)
    x, good, bad = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([2, 0]), np.array([1, 7])
    wrong = one.gather_rows(one.put(x), one.put(bad))
    right = other.gather_rows(other.put(x), other.put(good))
    np.testing.assert_array_equal(other.get(right), x[good])
    other.raise_pending()
    with pytest.raises(RangeError, match="index 7 at position"):
        one.get(wrong)
    one.raise_pending()


def test_an_index_that_one_program_got_wrong_keeps_no_other_from_its_updates() -> None:
    device = find_device()
    one, other = CudaOps(CUDA, device), CudaOps(CUDA, device)
    x = np.ones((3, 2), np.float32)
    one.gather_rows(one.put(x), one.put(np.array([7])))
    p, g = other.put(x), other.put(x)
    q = sgd_update(one, one.put(x), one.put(x), one.put(np.float32(0.5)))
    updated = sgd_update(other, p, g, other.put(np.float32(0.5)))
    np.testing.assert_array_equal(other.get(updated), np.full((3, 2), 0.5))
    with pytest.raises(RangeError):
        one.get(q)


# Devices --------------------------------------------------------------------------------------------------------------


def test_two_interpreters_compute_on_two_devices() -> None:
    for backend in ("eager", "compiled"):
        trainers = [trainer(0, Options(device=device, backend=backend)) for device in ("cpu", "cuda:0", "cuda:1")]
        optimizer = opstage.optim.sgd(lr=0.1)
        states = [each.init_optim(optimizer) for each in trainers]
        for _ in range(2):
            for each, state in zip(trainers, states, strict=True):
                each.advance(optimizer, state, *batch(0))
        first, *others = [each.get_params() for each in trainers]
        for other in others:
            for name in first:
                np.testing.assert_allclose(other[name], first[name], rtol=1e-5, atol=1e-6)
    assert find_device(0) is find_device() is not find_device(1)
    assert [str(find_device(n)) for n in (0, 1)] == ["cuda:0", "cuda:1"]
    assert find_device(1).peak > 0


def test_refs_of_another_device_are_refused() -> None:
    ops, others = CudaOps(CUDA), CudaOps(Options(device="cuda:1"))
    x, y = ops.put(np.ones((2, 2))), others.put(np.ones((2, 2)))
    with pytest.raises(
        ProgramError, match="is on cuda:1, but this interpreter computes on cuda:0; bring it to the host"
    ):
        ops.matmul(x, y)
    with pytest.raises(ProgramError, match="is on cuda:0, but this interpreter computes on cuda:1"):
        others.put(x)


@pytest.mark.parametrize("number", [2, 7, 9999])
def test_a_simulated_gpu_that_is_not_there_is_an_error(number: int) -> None:
    assert probe.SIMULATED_GPUS == 2
    with pytest.raises(UsageError, match=f"device 'cuda:{number}' is not available: this process sees GPUs 0 to 1"):
        opstage.run(lambda ops, x: x, np.ones(1), options=Options(device=f"cuda:{number}"))


RUN = """
import numpy as np, opstage
from opstage import Options
options = Options.from_env()
print(opstage.run(lambda ops, x: ops.add(x, x), np.ones(2), options=options))
"""


@pytest.mark.parametrize(
    ("visible", "device", "said"),
    [
        ("1", "cuda:0", "[2. 2.]"),
        ("0,1", "cuda:1", "[2. 2.]"),
        (
            "1",
            "cuda:1",
            "this process sees GPU 0 alone; the simulated machine has 2, and CUDA_VISIBLE_DEVICES=1 selects",
        ),
        ("", "cuda", "this process sees no GPU"),
        ("-1", "cuda", "this process sees no GPU"),
    ],
)
def test_what_a_process_is_let_see_is_what_it_has(visible: str, device: str, said: str) -> None:
    done = python(RUN, CUDA_VISIBLE_DEVICES=visible, OPSTAGE_DEVICE=device)
    assert said in done.stdout + done.stderr
    assert (done.returncode == 0) == said.startswith("[")


def python(text: str, **variables: str) -> Any:
    env = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", **variables}
    return subprocess.run([sys.executable, "-c", text], env=env, capture_output=True, text=True, timeout=300)


# Processes ------------------------------------------------------------------------------------------------------------

FORKED = """
import os, sys, threading, traceback
import numpy as np, opstage
from opstage import Options
from opstage.compiler.gpu.probe import find_device

def loss(ops, w, x):
    return ops.sum(ops.mul(ops.matmul(x, w), ops.matmul(x, w)))

x = np.ones((2, 3), np.float32)
if {before!r}:
    options = Options(device="cuda", backend={backend!r})
    made = opstage.scalar_trainer(loss, np.ones((3, 2), np.float32), options=options)
    made.step(0.1, x)
    gone = find_device().empty(opstage.ops.types.TensorType((4,), opstage.ops.types.FLOAT32))
else:
    made = opstage.scalar_trainer(loss, np.ones((3, 2), np.float32))

holding, go = threading.Event(), threading.Event()
def hold():
    with find_device().lock if {held!r} == "device" else made._interpreter.programs.lock:
        holding.set()
        go.wait(60)
if {held!r}:
    thread = threading.Thread(target=hold)
    thread.start()
    holding.wait(60)

def asked(what):
    try:
        print(np.asarray(what()).sum())
    except opstage.DeviceError as error:
        print("DeviceError", error.lost, error.reason.partition(":")[0])

pid = os.fork()
if not pid:
    try:
        if {before!r}:
            del gone
            asked(made.get_params)
            asked(lambda: made.step(0.1, x))
            asked(made.empty_cache)
            asked(lambda: opstage.run(lambda ops, x: x, x, options=Options(device="cuda:1")))
        asked(lambda: opstage.run(lambda ops, x: x, x, options=Options(device="cuda")))
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
        os._exit(3)
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
go.set()
print("parent", np.asarray(made.get_params()).shape, float(made.step(0.1, x)) > 0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize(
    ("before", "held", "backend"),
    [
        (True, "", "eager"),
        (True, "", "compiled"),
        (True, "device", "eager"),
        (True, "programs", "compiled"),
        (False, "", "eager"),
    ],
)
def test_a_forked_process_cannot_use_its_parents_device_and_is_told_so(before: bool, held: str, backend: str) -> None:
    done = python(FORKED.format(before=before, held=held, backend=backend))
    *child, parent = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    told = "DeviceError True CUDA is not supported in a process forked from one that uses it"
    assert child == ([told] * 5 if before else ["6.0"])
    assert parent == "parent (3, 2) True"
