"""The same bits on any number of processes: collectives and training, against one process that hosts all ranks."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.distributed.processes import NotJoinedError, launched, require_hosted, require_mpi_tasks
from opstage.distributed.ranks import Ranks, on_mesh
from opstage.interpreters.registry import make_interpreter
from opstage.models import gpt, model
from opstage.ops.mesh import Mesh
from tests.distributed.cases import CASES, Case
from tests.distributed.compared import adamw_steps, digest, rows_of, trainer_of
from tests.distributed.threads import Threads, on_processes

SMALL = gpt.Config(width=32, depth=2, heads=4, hidden=32, length=16)
MESHES = ("data=4", "data=6", "data=2,model=2", "model=3,data=2")


def found(case: Case, mesh: str, dtype: str, backend: str) -> list[bytes]:
    """The results of a collective on the ranks that this process hosts."""
    how = Options(mesh=mesh, dtype=dtype, backend=backend)  # type: ignore[arg-type]
    ops = on_mesh(make_interpreter(how), how)
    assert isinstance(ops, Ranks)
    ranks = Mesh.parse(mesh).ranks
    size = Mesh.parse(mesh).size("data")
    shape = tuple(n * size for n in case.shape)
    rng = np.random.default_rng(5)
    values = [rng.standard_normal(shape) for _ in range(ranks)] if case.varies else [rng.standard_normal(shape)] * ranks
    x = ops.each([ops.inner.put(values[rank]) for rank in ops.hosted])

    (out,) = ops.execute(lambda outer, x: (case.call(outer, x),), (x,))
    return [np.asarray(ops.inner.get(value)).tobytes() for value in ops.adopt(out).values]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mesh", MESHES)
def test_a_collective_has_the_bits_of_one_process(case: Case, mesh: str) -> None:
    for backend in ("eager", "compiled") if mesh == "data=4" else ("eager",):
        alone = found(case, mesh, "float32", backend)
        for count in [n for n in (2, 3, 4, 6) if Mesh.parse(mesh).ranks % n == 0]:
            spread = on_processes(count, lambda transport, b=backend: found(case, mesh, "float32", b))  # type: ignore[misc]
            assert [each for part in spread for each in part] == alone, (backend, count)


def trained(
    name: str, mesh: str, backend: str = "eager", steps: int = 2, zero: int = 0, bucket: str = "0"
) -> tuple[list[float], str]:
    made, rng = model(name, SMALL) if name == "gpt" else model(name), np.random.default_rng(0)
    trainer = trainer_of(made, Options(mesh=mesh, backend=backend, zero=zero, bucket_size=bucket))
    losses, leaves = adamw_steps(trainer, [rows_of(made.batch, rng, 12) for _ in range(steps)])
    moments = trainer.export().moments["adamw"].slots.values()
    return losses, digest([*leaves, *(slot for slots in moments for slot in slots)])


@cache
def on_one(name: str, mesh: str, backend: str = "eager") -> tuple[list[float], str]:
    """The same on one process that hosts all ranks, which several tests compare with."""
    return trained(name, mesh, backend)


@pytest.mark.parametrize(
    "name, mesh, backend",
    [
        ("mlp", "data=4", "eager"),
        ("mlp", "data=6", "eager"),
        ("cnn", "data=4", "eager"),
        ("resnet", "data=2", "eager"),
        ("mlp", "data=4", "compiled"),
        ("cnn", "data=4", "compiled"),
        pytest.param("resnet", "data=2", "compiled", marks=pytest.mark.slow),
        pytest.param("gpt", "data=4", "compiled", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is never used")
def test_training_has_the_bits_of_one_process(name: str, mesh: str, backend: str) -> None:
    alone = on_one(name, mesh, backend)
    count = 2 if mesh != "data=6" else 3
    assert on_processes(count, lambda transport: trained(name, mesh, backend)) == [alone] * count


@pytest.mark.parametrize("mesh", ["data=4", "data=2,model=2", "model=2,data=2"])
def test_parts_on_several_processes_have_the_bits_of_what_is_whole_on_one(mesh: str) -> None:
    name = "gpt" if "model" in mesh else "mlp"
    alone = on_one(name, mesh)
    for zero in (2, 3):
        assert on_processes(2, lambda transport, zero=zero: trained(name, mesh, zero=zero)) == [alone] * 2  # type: ignore[misc]


BUCKETED = (
    ("mlp", "data=4", "eager", 0),
    ("cnn", "data=3", "eager", 0),
    ("gpt", "model=2,data=2", "eager", 0),
    ("mlp", "data=4", "eager", 2),
    ("mlp", "data=4", "eager", 3),
    ("mlp", "data=4", "compiled", 0),
    ("cnn", "data=2", "compiled", 0),
    ("mlp", "data=4", "compiled", 2),
    ("mlp", "data=4", "compiled", 3),
)


@pytest.mark.parametrize(
    "name, mesh, backend, zero, bucket",
    [
        pytest.param(*case, bucket, marks=pytest.mark.slow if case[0] != "mlp" and bucket != "3KiB" else ())
        for case in BUCKETED
        for bucket in (("1B", "3KiB", "1GiB") if case[2] == "eager" else ("3KiB",))
    ],
)
def test_a_bucket_of_any_size_has_the_same_bits(name: str, mesh: str, backend: str, zero: int, bucket: str) -> None:
    """Of batch norm and dropout too, whose sums are read at once; of 4 processes, whose sums take two exchanges."""
    alone = on_one(name, mesh, backend)
    count = Mesh.parse(mesh).ranks

    assert on_processes(count, lambda _: trained(name, mesh, backend, zero=zero, bucket=bucket)) == [alone] * count


def test_the_bytes_of_a_sum_are_those_of_a_ring() -> None:
    def sent(transport: Threads) -> int:
        how = Options(mesh="data=4")
        ops: Any = on_mesh(make_interpreter(how), how)
        x = ops.put(np.ones(1 << 16, np.float32))
        ops.execute(lambda o, x: (o.all_reduce(x, axis="data"),), (x,))
        return transport.sent

    nbytes = 4 << 16
    assert on_processes(4, sent) == [2 * nbytes * 3 // 4] * 4
    assert on_processes(2, sent) == [nbytes] * 2


def test_how_many_processes_can_host_a_mesh() -> None:
    mesh = Mesh.parse("data=4")
    assert [require_hosted(mesh, n) for n in (1, 2, 4)] == [4, 2, 1]
    with pytest.raises(opstage.UsageError, match="has 4 ranks, which 3 processes cannot host in equal numbers"):
        require_hosted(mesh, 3)
    with pytest.raises(opstage.UsageError, match="has 4 ranks, but 8 processes were started"):
        require_hosted(mesh, 8)
    with pytest.raises(opstage.UsageError, match="there is no mesh, so there is one rank, but 2 processes"):
        require_hosted(Mesh(), 2)


TASK = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "1"}
BY_SRUN = {
    "pmix": {**TASK, "SLURM_MPI_TYPE": "pmix", "PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.6.0"},
    "pmi2": {**TASK, "SLURM_MPI_TYPE": "pmi2", "PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "13", "PMI_JOBID": "1.0"},
    "none": TASK,
}
"""The variables of the second of two tasks, as srun of Slurm 22.05 set them with each --mpi=."""


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({}, (0, 1)),
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, (3, 4)),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, (0, 2)),
        ({"SLURM_STEP_NUM_TASKS": "8", "PMIX_RANK": "7"}, (7, 8)),
        ({"SLURM_STEP_NUM_TASKS": "8"}, (0, 1)),
        (BY_SRUN["pmix"], (1, 2)),
        (BY_SRUN["pmi2"], (1, 2)),
        (BY_SRUN["none"], (0, 1)),
        ({**BY_SRUN["none"], "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}, (3, 4)),
        ({**BY_SRUN["pmix"], "SLURM_STEP_NUM_TASKS": "1", "PMIX_RANK": "0", "PMI_SIZE": "2", "PMI_RANK": "1"}, (1, 2)),
        ({"OMPI_COMM_WORLD_SIZE": "four", "OMPI_COMM_WORLD_RANK": "3"}, (0, 1)),
    ],
)
def test_how_a_launcher_is_known(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert launched(environ) == expected


def test_tasks_of_slurm_that_no_engine_joins_do_not_each_train_the_whole() -> None:
    mesh = Mesh.parse("data=4")
    with pytest.raises(opstage.UsageError, match="srun has started 4 tasks, but MPI joins none of them"):
        require_mpi_tasks(mesh, {"SLURM_STEP_NUM_TASKS": "4"})
    for called, environ in BY_SRUN.items():
        if called != "none":
            require_mpi_tasks(mesh, environ)
            continue
        for task in ("0", "1"):  # one of them says so
            with pytest.raises(NotJoinedError, match="srun --mpi=pmi2") as raised:
                require_mpi_tasks(mesh, {**environ, "SLURM_PROCID": task})
            assert raised.value.speaks is (task == "0")
    require_mpi_tasks(mesh, {"SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "1"})
    require_mpi_tasks(mesh, {"SLURM_STEP_NUM_TASKS": "1"})
    require_mpi_tasks(Mesh(), {"SLURM_STEP_NUM_TASKS": "4"})  # a task each that has nothing to do with the others


@pytest.mark.parametrize(
    "mesh, count, backend",
    [
        pytest.param(mesh, count, backend, marks=pytest.mark.slow if backend == "compiled" and count > 2 else ())
        for backend in ("eager", "compiled")
        for mesh, count in (("data=6,model=2", 4), ("data=3,model=2", 2), ("data=3,model=4", 4), ("model=2,data=3", 3))
    ],
)
def test_processes_whose_ranks_begin_in_another_group_exchange_in_one_order(
    mesh: str, count: int, backend: str
) -> None:
    """Process 0 has ranks 0, 1, 2 and process 1 ranks 3, 4, 5, of which the first is in the second group."""
    alone = trained("gpt", mesh, backend, steps=1)
    assert on_processes(count, lambda _: trained("gpt", mesh, backend, steps=1)) == [alone] * count
