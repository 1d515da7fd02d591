"""Checkpoints: what is saved comes back bit for bit, and what is no good checkpoint is refused by name."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import Options, optim, scalar_trainer
from opstage.ops.errors import UsageError
from opstage.training import checkpoint
from opstage.training.checkpoint import MANIFEST, Snapshot, exists, load, restore, save, take_snapshot
from opstage.training.finite import NotFiniteError
from opstage.training.fit import EpochResult, Position
from opstage.training.snapshot import OptimizerValues, TrainerValues
from opstage.training.state import OptimizerState
from opstage.training.trainer import ScalarTrainer
from tests.training import resume_program as program
from tests.training.same import same_snapshot

RESULTS = (EpochResult(0, 0.1 + 0.2, {"loss": 1 / 3, "accuracy": 0.5}, 1.25, 22, 7.0),)


def trained(steps: int = 3, **how: Any) -> tuple[ScalarTrainer, OptimizerState]:
    trainer = program.make_trainer(**how)
    state = trainer.init_optim(program.OPTIMIZER)
    for seed in range(steps):
        state = trainer.step_with(program.OPTIMIZER, state, *batch(seed))
    return trainer, state


def batch(seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((4, 3)), rng.standard_normal((4, 2))


def snapshot(steps: int = 3, **how: Any) -> Snapshot:
    trainer, state = trained(steps, **how)
    trainer.adam_step(0.01, 0.9, 0.99, 1e-8, *batch(9))
    return take_snapshot(trainer, program.OPTIMIZER, state, Position(1, 2, 0.7, 8, 0.25, RESULTS), {"model": {"n": 5}})


def manifest_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    return document


def tensors_of(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def rewrite(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Forge a manifest whose own checksum holds."""
    document = manifest_of(folder)
    del document["sha256"]
    change(document)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(document))


def forge_tensors(folder: Path, data: bytes) -> None:
    """Put other bytes in the place of the tensors, all checksums holding."""
    digest = hashlib.sha256(data).hexdigest()
    tensors_of(folder).unlink()
    (folder / f"tensors-{digest}.safetensors").write_bytes(data)
    entry = {"file": f"tensors-{digest}.safetensors", "bytes": len(data), "sha256": digest}
    rewrite(folder, lambda document: document.update(tensors=entry))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save(tmp_path / "run", snapshot())
    return tmp_path / "run"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_is_saved_comes_back_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    given = snapshot(dtype=dtype)
    assert not checkpoint.exists(tmp_path / "a" / "b")
    save(tmp_path / "a" / "b", given)
    assert checkpoint.exists(tmp_path / "a" / "b")
    found = load(tmp_path / "a" / "b")
    same_snapshot(found, given)
    assert found.position == given.position
    assert found.config == {"model": {"n": 5}}
    assert found.versions == given.versions
    assert set(found.versions) == {"python", "opstage", "numpy", "numba", "safetensors"}


def test_numbers_that_are_not_finite_and_odd_arrays_come_back(tmp_path: Path) -> None:
    params = {
        "": np.array([np.nan, -0.0, np.inf, 5e-324]),
        "empty": np.zeros((0, 3), np.float32),
        "scalar": np.array(1.5),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "strided": np.arange(12)[::5],
        "mask": np.array([True, False]),
    }
    given = Snapshot(TrainerValues(params), position=Position(loss_sum=float("nan")), config={"rate": 1e-3})
    with pytest.raises(NotFiniteError, match=r"parameter .* is nan at index \(0,\)"):
        save(tmp_path, given)
    assert not exists(tmp_path)
    save(tmp_path, given, require_finite=False)
    assert json.loads((tmp_path / MANIFEST).read_text(), parse_constant=pytest.fail)["position"]["loss_sum"] == "nan"
    found = load(tmp_path)
    same_snapshot(found, given)
    assert np.isnan(found.position.loss_sum)
    found.trainer.params["strided"][0] = 7


def test_a_restored_trainer_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    first, state = trained()
    for trainer in (first, program.make_trainer()):
        if trainer is not first:
            found = restore(trainer, load(tmp_path), program.OPTIMIZER)
            assert found is not None
            state = found
        else:
            first.adamw_step(0.01, 0.9, 0.99, 1e-8, 0.1, *batch(6))
            save(tmp_path, take_snapshot(first, program.OPTIMIZER, state))
        for seed in range(3, 6):
            trainer.adamw_step(0.01, 0.9, 0.99, 1e-8, 0.1, *batch(seed))
            state = trainer.step_with(program.OPTIMIZER, state, *batch(seed))
        after = take_snapshot(trainer, program.OPTIMIZER, state)
        if trainer is first:
            expected = after
    same_snapshot(after, expected)


def test_a_save_replaces_the_checkpoint_and_leaves_nothing_else(saved: Path) -> None:
    (saved / "notes.txt").write_text("mine")
    for name in (tensors_of(saved).name[:50], MANIFEST):
        (saved / f".{name}.0123456789abcdef.tmp").write_text("left by a process that was killed")
    before = tensors_of(saved)
    save(saved, snapshot(4))
    assert tensors_of(saved) != before
    assert sorted(path.name for path in saved.iterdir()) == sorted([MANIFEST, tensors_of(saved).name, "notes.txt"])
    save(saved, load(saved))
    same_snapshot(load(saved), snapshot(4))


def test_exports_are_the_callers_own() -> None:
    trainer, state = trained()
    taken = take_snapshot(trainer, program.OPTIMIZER, state)
    for arrays in (taken.trainer.params, taken.trainer.state):
        for array in arrays.values():
            array[...] = 99
    again = take_snapshot(trainer, program.OPTIMIZER, state)
    assert all((array != 99).all() for array in again.trainer.params.values())
    assert again.trainer.steps_taken == 3


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


class Trap:
    """Unpickling one of these would raise."""

    def __reduce__(self) -> Any:
        return (pytest.fail, ("code from a file was run",))


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda f: (f / MANIFEST).unlink(), "holds no checkpoint; expected one with a file checkpoint.json"),
    "no tensors": (lambda f: tensors_of(f).unlink(), "cannot be read: No such file"),
    "truncated tensors": (lambda f: truncate(tensors_of(f)), "truncated: it has"),
    "empty tensors": (lambda f: tensors_of(f).write_bytes(b""), "truncated: it has 0 of"),
    "longer tensors": (lambda f: tensors_of(f).write_bytes(tensors_of(f).read_bytes() + b"x"), "altered: its checksum"),
    "altered tensors": (lambda f: flip(tensors_of(f), -1), "altered: its checksum is not the one in checkpoint.json"),
    "altered header": (lambda f: flip(tensors_of(f), 20), "altered: its checksum is not the one in checkpoint.json"),
    "truncated manifest": (lambda f: truncate(f / MANIFEST), "truncated, altered or not a checkpoint of Opstage"),
    "empty manifest": (lambda f: (f / MANIFEST).write_bytes(b""), "truncated, altered or not a checkpoint of Opstage"),
    "binary manifest": (lambda f: (f / MANIFEST).write_bytes(b"\xff\x00"), "truncated, altered or not a checkpoint"),
    "deep manifest": (lambda f: (f / MANIFEST).write_text("[" * 100_000), "truncated, altered or not a checkpoint"),
    "pickle": (lambda f: (f / MANIFEST).write_bytes(pickle.dumps(Trap())), "truncated, altered or not a checkpoint"),
    "altered manifest": (
        lambda f: (f / MANIFEST).write_text((f / MANIFEST).read_text().replace('"epoch": 1', '"epoch": 2')),
        "altered: its checksum does not hold",
    ),
    "foreign manifest": (lambda f: (f / MANIFEST).write_text('{"model": 1}'), "its format is not 'opstage checkpoint'"),
    "list manifest": (lambda f: (f / MANIFEST).write_text("[]"), "its format is not 'opstage checkpoint'"),
    "newer": (
        lambda f: rewrite(f, lambda d: d.update(format_version=2)),
        "of format version 2; this Opstage reads version 1",
    ),
    "tensors elsewhere": (
        lambda f: rewrite(f, lambda d: d["tensors"].update(file="../other.safetensors")),
        "it names no tensors file",
    ),
    "no position": (
        lambda f: rewrite(f, lambda d: d.pop("position")),
        "not a checkpoint of Opstage: there is no 'position'",
    ),
    "odd position": (lambda f: rewrite(f, lambda d: d.update(position=[1])), "not a checkpoint of Opstage"),
    "missing slot": (
        lambda f: rewrite(f, lambda d: d["optimizer"]["slots"].update(second=3)),
        "not a checkpoint of Opstage: optimizer: slots: second: names a tensor optimizer/2/second",
    ),
    "foreign tensors": (lambda f: forge_tensors(f, pickle.dumps(Trap())), "not a safetensors file"),
    "oversized header": (
        lambda f: forge_tensors(f, (2**60).to_bytes(8, "little") + b"{}"),
        "its header would have 1,152,921,504,606,846,976 bytes, and 100,000,000 are allowed",
    ),
    "header beyond the end": (
        lambda f: forge_tensors(f, (500).to_bytes(8, "little") + b"{}"),
        "truncated: its header has 500 bytes, but only 2 are there",
    ),
    "places beyond the end": (
        lambda f: forge_tensors(f, tensor_file({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, 8)),
        "not a safetensors file that can be read",
    ),
    "shape that does not fit": (
        lambda f: forge_tensors(
            f, tensor_file({"a": {"dtype": "F32", "shape": [2**62, 8], "data_offsets": [0, 8]}}, 8)
        ),
        "not a safetensors file that can be read",
    ),
}


def tensor_file(header: dict[str, Any], size: int) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(size)


@pytest.mark.parametrize("harm", BAD)
def test_bad_checkpoints(saved: Path, harm: str) -> None:
    spoil, message = BAD[harm]
    spoil(saved)
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        load(saved)
    assert str(error.value).startswith(str(saved))


def test_flipped_bits_are_found(tmp_path: Path) -> None:
    save(tmp_path, Snapshot(TrainerValues({"w": np.ones(2)}), config={"a": 1}, versions={}))
    for path in (tmp_path / MANIFEST, tensors_of(tmp_path)):
        whole = path.read_bytes()
        for at in range(0, len(whole), 5):
            flip(path, at)
            try:
                found = load(tmp_path)
            except UsageError:
                pass
            else:  # white space is all that may differ
                assert found.trainer.params["w"].tolist() == [1.0, 1.0]
                assert json.loads(path.read_bytes()) == json.loads(whole)
            path.write_bytes(whole)


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none: no such folder; expected one with a file checkpoint\.json"):
        load(tmp_path / "none")


def test_a_model_of_other_shapes_is_refused_and_untouched(saved: Path) -> None:
    other = program.make_trainer(width=7)
    before = other.export()
    with pytest.raises(UsageError) as error:
        restore(other, load(saved))
    assert str(error.value).splitlines() == [
        "the saved parameters do not fit:",
        "  first.bias: expected (7,) float32, found (5,) float32",
        "  first.weight: expected (7, 3) float32, found (5, 3) float32",
        "  second: expected (2, 7) float32, found (2, 5) float32",
    ]
    same_snapshot(Snapshot(other.export()), Snapshot(before))


def test_a_model_of_other_names_is_refused(saved: Path) -> None:
    other = scalar_trainer(
        lambda ops, p, x: ops.sum(ops.linear(p["frist"]["weight"], p["frist"]["bias"], x)),
        {"frist": {"weight": np.ones((5, 3)), "bias": np.ones(5)}},
    )
    with pytest.raises(UsageError) as error:
        restore(other, load(saved))
    assert "frist.bias is missing (did you mean 'first.bias'?)" in str(error.value)
    assert "second is not expected" in str(error.value)


def test_another_dtype_or_optimizer_is_refused_and_nothing_is_touched(saved: Path) -> None:
    with pytest.raises(UsageError, match=r"first\.bias: expected \(5,\) float64, found \(5,\) float32"):
        restore(program.make_trainer(dtype="float64"), load(saved))
    trainer = program.make_trainer()
    before = trainer.export()
    with pytest.raises(UsageError, match="the saved optimizer state is that of adamw, not of adam"):
        restore(trainer, load(saved), optim.adam())
    found = load(saved)
    assert found.optimizer is not None
    short = OptimizerValues("adamw", 3, {path: slots[:1] for path, slots in found.optimizer.slots.items()})
    with pytest.raises(UsageError, match=r"the saved moments of adamw do not fit:\n  first.bias slot 1 is missing"):
        restore(trainer, Snapshot(found.trainer, short), program.OPTIMIZER)
    with pytest.raises(UsageError, match="holds no optimizer state"):
        restore(trainer, Snapshot(found.trainer), program.OPTIMIZER)
    with pytest.raises(UsageError, match=r"the saved values of the state do not fit:\n  running is missing"):
        restore(trainer, Snapshot(TrainerValues(found.trainer.params)))
    same_snapshot(Snapshot(trainer.export()), Snapshot(before))


def test_frozen_parameters_are_saved_and_have_no_slots(tmp_path: Path) -> None:
    def make() -> ScalarTrainer:
        return scalar_trainer(
            lambda ops, p, x: ops.sum(ops.mul(ops.mul(p["a"], p["b"]), x)),
            {"a": np.ones(2), "b": np.full(2, 3.0)},
            requires_grad={"a": True, "b": False},
        )

    trainer = make()
    state = trainer.step_with(optim.adam(), trainer.init_optim(optim.adam()), np.ones(2))
    save(tmp_path, take_snapshot(trainer, optim.adam(), state))
    found = load(tmp_path)
    assert set(found.trainer.params) == {"a", "b"}
    assert found.optimizer is not None and set(found.optimizer.slots) == {"a"}
    restore(make(), found, optim.adam())


def test_what_cannot_be_saved_changes_nothing(saved: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(UsageError, match="config of a checkpoint must be plain JSON data"):
        save(saved, Snapshot(TrainerValues({"w": np.ones(2)}), config={"loader": object()}))
    exact = scalar_trainer(lambda ops, p, x: ops.sum(ops.mul(p, x)), np.ones(2), options=Options(dtype="exact"))
    with pytest.raises(UsageError, match=r"params/: object values cannot be stored"):
        save(saved, take_snapshot(exact))
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
