"""Checkpoints of a mesh: tensor by tensor, whole, written once; of what is loaded a process keeps its parts."""

from __future__ import annotations

import errno
import gc
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import opstage
from opstage import Options, UsageError, optim
from opstage.distributed.processes import world
from opstage.files import Disk, WriteError
from opstage.runs.processes import DisagreementError, raise_together
from opstage.safetensors_files import stream
from opstage.training import checkpoint
from opstage.training.state import OptimizerState
from opstage.training.trainer import ScalarTrainer
from tests.distributed.compared import digest
from tests.distributed.threads import on_processes

LAYERS, WIDTH = 12, 256
TENSOR = WIDTH * WIDTH * 4
RULE = optim.adam(lr=0.01)


def loss(ops: Any, params: Any, x: Any) -> Any:
    """Of a stack of layers."""
    for w in params:
        x = ops.tanh(ops.linear(w, None, x))
    return ops.reduce_mean(ops.mul(x, x))


def batch() -> Any:
    return np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)


def trainer_of(layers: int = 3, **options: Any) -> ScalarTrainer:
    rng = np.random.default_rng(0)
    params = [(rng.standard_normal((WIDTH, WIDTH)) / 16).astype(np.float32) for _ in range(layers)]
    return opstage.scalar_trainer(loss, params, options=Options(**options))


def stepped(layers: int = 3, **options: Any) -> tuple[ScalarTrainer, OptimizerState]:
    trainer = trainer_of(layers, **options)
    state = trainer.init_optim(RULE)
    trainer.advance(RULE, state, batch())
    return trainer, state


def unfetched(trainer: ScalarTrainer, state: OptimizerState) -> checkpoint.Snapshot:
    return checkpoint.take_snapshot(trainer, RULE, state, fetched=False)


def digest_of(folder: Path) -> str:
    return checkpoint.tensors_file(folder).name


@pytest.mark.parametrize("zero", [0, 2, 3])
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_one_file_whatever_the_processes_keep(tmp_path: Path, zero: int, processes: int) -> None:
    """Whole tensors by name: the bytes of the checkpoint of fetched values on one process without parts."""
    trainer, state = stepped(mesh="data=4")
    checkpoint.save(tmp_path / "whole", checkpoint.take_snapshot(trainer, RULE, state))

    def run(transport: Any) -> None:
        trainer, state = stepped(mesh="data=4", zero=zero)
        folder = tmp_path / "streamed" if getattr(transport, "process", 0) == 0 else None
        checkpoint.save(folder, unfetched(trainer, state))

    on_processes(processes, run) if processes > 1 else run(None)
    assert digest_of(tmp_path / "streamed") == digest_of(tmp_path / "whole")
    assert [path.suffix for path in sorted((tmp_path / "streamed").iterdir())] == [".json", ".safetensors"]


def peak(run: Any) -> int:
    """The most bytes that Python and NumPy held at once beyond what they held before."""
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("zero", [2, 3])
def test_nobody_holds_all_tensors_to_write_them(tmp_path: Path, zero: int) -> None:
    """Of 36 tensors, parameters and moments, a few at a time, all processes together."""
    trainer, state = stepped(LAYERS, mesh="data=4", zero=zero)
    used = peak(lambda: checkpoint.save(tmp_path / "one", unfetched(trainer, state)))
    assert used < 6 * TENSOR < 3 * LAYERS * TENSOR

    def run(transport: Any) -> None:
        trainer, state = stepped(LAYERS, mesh="data=2", zero=zero)
        world().exchange({1 - transport.process: np.zeros(1)}, {1 - transport.process: np.zeros(1)}, "meet")
        if transport.process == 0:
            tracemalloc.start()
        world().exchange({1 - transport.process: np.zeros(1)}, {1 - transport.process: np.zeros(1)}, "meet again")
        checkpoint.save(tmp_path / "two" if transport.process == 0 else None, unfetched(trainer, state))

    try:
        on_processes(2, run)
        assert tracemalloc.get_traced_memory()[1] < 16 * TENSOR
    finally:
        tracemalloc.stop()


def test_a_process_loads_the_parts_that_it_keeps(tmp_path: Path) -> None:
    """Four processes that keep a quarter each hold the tensors once in all; whole, they would four times."""
    trainer, state = stepped(LAYERS, mesh="data=4")
    checkpoint.save(tmp_path, checkpoint.take_snapshot(trainer, RULE, state))
    expected = trainer.get_params()
    whole = 3 * LAYERS * TENSOR
    trainers = on_processes(4, lambda transport: trainer_of(LAYERS, mesh="data=4", zero=3))

    def load(transport: Any) -> OptimizerState | None:
        trainer = trainers[transport.process]
        return checkpoint.restore(trainer, checkpoint.load(tmp_path, mapped=True, verify=transport.process == 0), RULE)

    found: list[Any] = []
    assert peak(lambda: found.extend(on_processes(4, load))) < 1.3 * whole

    def same(transport: Any) -> None:
        for param, value in zip(trainers[transport.process].params, expected):
            assert param.host is None
            np.testing.assert_array_equal(param.value, value)
        for slots, others in zip(found[transport.process].slots, state.slots):
            np.testing.assert_array_equal(slots, others)

    on_processes(4, same)


def test_a_run_goes_on_to_the_same_bits_whatever_it_keeps(tmp_path: Path) -> None:
    trainer, state = stepped(mesh="data=4", zero=3)
    checkpoint.save(tmp_path, unfetched(trainer, state))
    digests = set()
    for zero in (0, 2, 3):
        trainer = trainer_of(mesh="data=4", zero=zero)
        state_now = checkpoint.restore(trainer, checkpoint.load(tmp_path, mapped=True), RULE)
        assert state_now is not None
        trainer.advance(RULE, state_now, batch())
        leaves = [*trainer.get_params(), *[slot for slots in state_now.slots for slot in slots]]
        digests.add(digest(leaves))
    assert len(digests) == 1


class FullDisk(Disk):
    """Takes so many bytes."""

    def __init__(self, room: int):
        self.room = room

    def write(self, file: int, data: memoryview) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = super().write(file, data[: self.room])
        self.room -= count
        return count


@pytest.mark.parametrize("zero", [0, 2, 3])
def test_a_full_disk_is_the_error_of_all_processes_and_the_old_checkpoint_stays(tmp_path: Path, zero: int) -> None:
    trainer, state = stepped(mesh="data=2", zero=zero)
    checkpoint.save(tmp_path, unfetched(trainer, state))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def run(transport: Any) -> str:
        trainer, state = stepped(mesh="data=2", zero=zero)
        trainer.advance(RULE, state, batch())
        folder = tmp_path if transport.process == 0 else None
        with pytest.raises(DisagreementError) as caught, raise_together(transport):
            checkpoint.save(folder, unfetched(trainer, state), disk=FullDisk(2 * TENSOR + 4096))
        trainer.advance(RULE, state, batch())  # all are at one place, and could go on
        return str(caught.value)

    said = on_processes(2, run)
    assert said[0] == said[1] and "No space left on device; nothing was changed; make room" in said[0]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    with pytest.raises(WriteError):
        checkpoint.save(tmp_path, unfetched(trainer, state), disk=FullDisk(100))


def test_a_snapshot_that_was_not_fetched_is_none_once_the_run_goes_on(tmp_path: Path) -> None:
    trainer, state = stepped(mesh="data=2", zero=3)
    late = unfetched(trainer, state)
    trainer.advance(RULE, state, batch())
    with pytest.raises(UsageError, match="the run has taken a step since"):
        checkpoint.save(tmp_path, late)


def test_an_altered_file_is_told_of_by_who_verifies(tmp_path: Path) -> None:
    trainer, state = stepped()
    checkpoint.save(tmp_path, unfetched(trainer, state))
    path = checkpoint.tensors_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for mapped in (False, True):
        with pytest.raises(UsageError, match="altered: its checksum"):
            checkpoint.load(tmp_path, mapped=mapped)
    path.write_bytes(data[:-8])
    for verify in (False, True):
        with pytest.raises(UsageError, match="truncated"):
            checkpoint.load(tmp_path, mapped=True, verify=verify)


def test_streamed_tensors_are_read_by_the_formats_own_library(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "b/c": np.array(7, np.int64),
        "nothing": np.zeros((0, 3)),
        "mask": np.array([True, False, True]),
        "small": np.array([1, 2, 3], np.int8),
        "big endian": np.arange(4, dtype=">f8"),
        "näme": np.ones(3, np.float64),
    }
    read: list[str] = []

    def reading(name: str) -> Any:
        read.append(name)
        return tensors[name]

    data = b"".join(stream(tensors, reading))
    assert sorted(read) == sorted(tensors)
    (tmp_path / "t.safetensors").write_bytes(data)
    found = load_file(tmp_path / "t.safetensors")
    assert set(found) == set(tensors)
    for name, array in tensors.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype.newbyteorder("=")
    assert (8 + int.from_bytes(data[:8], "little")) % 8 == 0
    assert json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["a"]["shape"] == [3, 2]
    with pytest.raises(UsageError, match="object values cannot be stored as tensors"):
        list(stream({"x": np.array([None])}, lambda name: np.zeros(1)))
