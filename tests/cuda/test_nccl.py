"""Ranks on GPUs: several processes by a stand-in for NCCL, and a mesh in one process on one device.

What is shown: that the bits are those of one process, what is asked of NCCL, in which order buffers may be written
over, and every error. Nothing here ran on NCCL or on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, RangeError, optim
from opstage.compiler.gpu import probe
from opstage.compiler.gpu.simulator import Simulator
from opstage.distributed import nccl as engine
from opstage.distributed.processes import own_number, using
from opstage.distributed.ranks import Ranks
from opstage.interpreters.graph.cuda.lowering import LaunchRecorder
from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import OpstageError, RankError, UsageError
from opstage.ops.mesh import parse_mesh
from tests.cuda.nccl import Nccl
from tests.cuda.small_models import normalised, normalised_params
from tests.distributed.test_compiled_ranks import PROGRAMS, Program, results
from tests.distributed.threads import on_processes


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nccl]:
    """NCCL's stand-in, on a machine of four simulated GPUs."""
    made = Nccl()
    monkeypatch.setattr(engine, "load", lambda: made)
    monkeypatch.setattr(probe, "SIMULATED_GPUS", 4)
    find = probe._found  # which keeps devices for the other tests, that have two
    monkeypatch.setattr(probe, "_found", cache(lambda number: (find if number < 2 else find.__wrapped__)(number)))
    monkeypatch.setattr(engine, "_JOINED", [])
    yield made


def bits(outs: list[list[np.ndarray[Any, Any]]]) -> list[list[bytes]]:
    return [[out.tobytes() for out in rank] for rank in outs]


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_any_number_of_processes_has_the_bits_of_one(
    program: Program, backend: str, late: bool, nccl: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simulator, "late", late)
    on_cpu = results(program, "data=4", "eager")
    alone = results(program, "data=4", backend, device="cuda")
    for one, other in zip(on_cpu, alone, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    assert not nccl.calls, "one process asks nobody"
    for count in (2, 4):
        spread = on_processes(count, lambda _: results(program, "data=4", backend, device="cuda"))
        assert bits([rank for part in spread for rank in part]) == bits(alone)
        meets = program.__name__ != "cut_elsewhere"
        assert {rank for rank, *_ in nccl.calls} == (set(range(count)) if meets else set()), "all goes over NCCL"


def trained(**options: Any) -> tuple[list[float], list[bytes], int]:
    """The losses of three steps, the parameters after them, and the bytes that this process has sent."""
    rng = np.random.default_rng(0)
    params = normalised_params(rng, 16, 10)
    trainer = opstage.scalar_trainer(
        normalised, params, options=Options(**{"mesh": "data=4", "device": "cuda", **options})
    )
    rule = optim.adam(lr=0.01)
    state = trainer.init_optim(rule)
    losses = []
    for _ in range(3):
        x, y = rng.standard_normal((8, 10)).astype("f"), rng.integers(0, 3, 8)
        losses.append(float(trainer.advance(rule, state, x, y).loss))
    ranks: Any = trainer._state.interpreter
    return losses, [np.asarray(trainer.get_params()[name]).tobytes() for name in params], ranks.transport.sent


@pytest.mark.parametrize("zero, bucket", [(0, "0"), (0, "1MiB"), (2, "600"), (3, "600"), (3, "1MiB")])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_training_has_the_bits_of_one_process(backend: str, zero: int, bucket: str, nccl: Nccl) -> None:
    options: dict[str, Any] = {"backend": backend, "zero": zero, "bucket_size": bucket}
    losses, params, sent = trained(**options)
    assert (losses, params) == trained(**{**options, "zero": 0, "bucket_size": "0"})[:2]
    assert losses[-1] != losses[0] and not sent and not nccl.calls
    for process, found in enumerate(on_processes(4, lambda _: trained(**options))):
        assert found[:2] == (losses, params)
        over_nccl = sum(n for rank, what, _, n in nccl.calls if (rank, what) == (process, "send"))
        joining = 3 * engine._NAME_BYTES + (0 if process else 3 * 128)
        assert found[2] == over_nccl + joining, "nothing of a tensor went by the host"


def test_products_of_a_rank_begin_in_memory_where_they_would_alone(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """As cuBLAS adds in an order chosen by alignment; a rank's rows may be a part of a batch."""
    seen: list[Any] = []
    product = LaunchRecorder.product

    def noted(this: LaunchRecorder, out: Any, x: Any, y: Any, **more: Any) -> None:
        seen.extend([out.handle.offset, x.handle.offset, y.handle.offset])
        product(this, out, x, y, **more)

    monkeypatch.setattr(LaunchRecorder, "product", noted)
    trained(backend="compiled")
    on_processes(2, lambda _: trained(backend="compiled"))
    assert seen and set(seen) == {0}


def lookup(ops: Any, params: Any, i: Any) -> Any:
    return ops.reduce_mean(ops.gather_rows(params["table"], i))


@pytest.mark.parametrize("processes", [1, 2])
def test_an_index_out_of_range_of_one_rank_is_found(processes: int, nccl: Nccl) -> None:
    """Though a collective, which looks at none, is the last that is asked for."""

    def run(_: Any) -> Any:
        rows = np.arange(8) % 6
        options = Options(mesh="data=2", device="cuda", backend="compiled")
        trainer = opstage.scalar_trainer(lookup, {"table": np.ones((6, 4), np.float32)}, options=options)
        trainer.step(0.1, rows)
        before = np.array(trainer.get_params()["table"])
        rows[7] = 9  # of the last rank
        try:
            trainer.step(0.1, rows)
        except RangeError as error:
            assert np.array_equal(trainer.get_params()["table"], before)
            return str(error)
        return ""

    said = on_processes(processes, run) if processes > 1 else [run(None)]
    assert "gather_rows" in said[-1] and "9" in said[-1]


# Errors ---------------------------------------------------------------------------------------------------------------


def step(how: Options) -> str:
    """What one step says against these options."""
    try:
        trained(**{name: getattr(how, name) for name in ("device", "mesh")})
    except OpstageError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_missing_nccl4py_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_JOINED", [])
    monkeypatch.setitem(sys.modules, "nccl.core", None)
    for said in on_processes(2, lambda _: step(Options(mesh="data=2", device="cuda"))):
        assert said.startswith("UsageError: several processes host a mesh on device 'cuda', but nccl4py")
        assert said.endswith("pip install 'opstage[nccl]'")


@pytest.fixture
def own_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that have one GPU have no object in common for it, and no lock."""
    monkeypatch.setattr(probe, "_found", lambda number: Simulator(number=number))


def test_two_processes_on_one_gpu_are_refused_alike(nccl: Nccl, own_devices: None) -> None:
    every = on_processes(2, lambda _: step(Options(mesh="data=2", device="cuda:1")))
    assert every[0] == every[1]
    assert every[0].startswith("UsageError: processes 0 and 1 of 2 have one GPU, cuda:1 of here")
    assert not nccl.calls


def test_more_processes_than_gpus_of_their_host_are_refused(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SIMULATED_GPUS", 2)
    for said in on_processes(4, lambda _: step(Options(mesh="data=4", device="cuda"))):
        assert said.startswith("UsageError: 4 of 4 processes are on here, where they see 2 GPUs")
        assert "at most 2" in said


def test_a_process_takes_the_only_gpu_that_it_sees(
    nccl: Nccl, own_devices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As launchers show each another one; where they have not, it is found out."""
    monkeypatch.setattr(probe, "SIMULATED_GPUS", 1)
    for said in on_processes(2, lambda _: step(Options(mesh="data=2", device="cuda"))):
        assert said.startswith("UsageError: processes 0 and 1 of 2 have one GPU, cuda:0 of here")


def test_processes_number_their_gpus_host_by_host() -> None:
    options = Options(mesh="data=4", device="cuda")
    for process, number in enumerate((0, 0, 1, 1)):
        transport: Any = SimpleNamespace(process=process, processes=4, hosts=("a", "b", "a", "b"))
        with using(transport):
            assert own_number(options, lambda: 2) == number
            assert own_number(options.replace(device="cuda:1"), lambda: 2) == 1
            assert own_number(options.replace(mesh=""), lambda: 2) == 0


def test_an_engine_of_the_host_alone_moves_nothing_of_a_gpu() -> None:
    def run(transport: Any) -> str:
        how = Options(mesh="data=2", device=f"cuda:{transport.process}")
        ops: Any = Ranks(make_interpreter(how), parse_mesh("data=2"), transport)
        with pytest.raises(UsageError, match="the engine between processes does not reach the memory of a GPU"):
            ops.execute(lambda ops, x: (ops.all_reduce(ops.vary(x, axis="data"), axis="data"),), (ops.put(np.ones(3)),))
        return ""

    on_processes(2, run)


def test_what_nccl_says_of_an_exchange_under_way_ends_the_wait() -> None:
    nccl, transport = Nccl(), SimpleNamespace(process=0, processes=1, hosts=("here",), watch=until)
    joined: Any = engine.NcclTransport(transport, 1.0, nccl)
    joined._communicator = nccl.Communicator(1, 0)
    joined._wait(iter([False, False, True]).__next__)
    nccl.failing = 6
    with pytest.raises(RankError, match=r"NCCL failed on process 0 of 1 on here in .*: remote process exited"):
        joined._wait(lambda: False)
    assert nccl.aborted == [0], "kernels that wait for what will not come are ended"


def until(done: Any, called: str) -> None:
    while not done():
        pass


def trained_in_one_process(**options: Any) -> list[np.ndarray[Any, Any]]:
    """The parameters after two steps."""
    rng = np.random.default_rng(0)
    params = normalised_params(rng, 40, 30)
    trainer = opstage.scalar_trainer(normalised, params, options=Options(**options))
    rule = optim.adam(lr=0.01)
    state = trainer.init_optim(rule)
    for _ in range(2):
        trainer.advance(rule, state, rng.standard_normal((8, 30)).astype("f"), rng.integers(0, 3, 8))
    return [np.asarray(trainer.get_params()[name]) for name in params]


@pytest.mark.parametrize("backend, zero", [("eager", 2), ("compiled", 2)])
def test_one_device_hosts_all_ranks(backend: str, zero: int) -> None:
    expected = trained_in_one_process(mesh="data=2")
    found = trained_in_one_process(mesh="data=2", device="cuda", backend=backend, zero=zero)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
