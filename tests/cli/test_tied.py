"""Tied parameters as a person at a terminal sees them: in checks, in checkpoints, in weights, in a shipped model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from opstage import Param, optim, scalar_trainer
from opstage.interop.weights import read_state_dict, write_state_dict
from opstage.training import checkpoint
from opstage.training.headers import check_checkpoint
from opstage.training.snapshot import take_snapshot
from tests.cli.conftest import Command

PROGRAM = """
import numpy as np
from opstage import Param

def tied():
    w = Param(np.ones((4, 4), np.float32))
    return {"embedding": w, "head": w}

def shared():
    w = np.ones((4, 4), np.float32)
    return {"embedding": w, "head": w}

def loss(ops, params, x):
    return ops.sum(ops.linear(params["head"], None, ops.linear(params["embedding"], None, x)))
"""


def test_a_check_says_what_is_tied_and_what_may_be(opstage: Command, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(PROGRAM)
    asked = ["check", "model.py:loss", "--input", "x: B 4", "--params"]
    code, out, _ = opstage(*asked, "tied", "--table")
    assert code == 0
    assert "tied, counted once: params.embedding = params.head" in out
    assert "tied, one parameter: params.embedding = params.head" in opstage(*asked, "tied", "-v")[1]
    code, out, _ = opstage(*asked, "tied", "--format", "json", "--table")
    (target,) = json.loads(out)["targets"]
    assert target["tied"] == target["sections"]["table"]["data"]["tied"] == [["params.embedding", "params.head"]]
    assert (code, target["parameters"]) == (0, "16")
    code, out, _ = opstage(*asked, "shared", "--warnings-as-errors")
    assert code == 1
    assert "warning[shared-array]: params.head: embedding and head are one array" in out
    assert "make one Param of it" in out


def test_a_checkpoint_and_exported_weights_hold_one_entry(opstage: Command, tmp_path: Path) -> None:
    def loss(ops, params, x):  # type: ignore[no-untyped-def]
        return ops.sum(ops.linear(params["head"], None, ops.linear(params["embedding"], None, x)))

    w = Param(np.ones((4, 4), np.float32))
    trainer, optimizer = scalar_trainer(loss, {"embedding": w, "head": w}), optim.adam()
    state = trainer.init_optim(optimizer)
    trainer.advance(optimizer, state, np.ones((2, 4), np.float32))
    checkpoint.save(tmp_path / "kept", take_snapshot(trainer, optimizer, state))
    code, out, _ = opstage("export-weights", "kept", "out.safetensors")
    assert code == 0
    assert out.splitlines() == [
        "1 tensors, 16 numbers in out.safetensors",
        "head is tied to embedding, and stored once; safetensors.torch.load_model(net, FILE) reads both",
    ]
    for stored in ("kept", "out.safetensors"):
        tree = {"embedding": w, "head": w}
        assert check_checkpoint(tmp_path / stored, tree) == ()
    read = read_state_dict(tmp_path / "out.safetensors")
    assert read["head"] is read["embedding"] and np.array_equal(read["head"], w.value)


@pytest.mark.slow
def test_gpt_with_tied_weights_is_trained_samples_and_is_given_a_file(opstage: Command, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a text that is long enough to be cut into windows of bytes. " * 40)
    size = ["--model.length", "8", "--model.width", "8", "--model.depth", "1", "--model.heads", "2"]
    size += ["--model.hidden", "8", "--model.tie_weights", "true"]
    words = [*size, "--data", "text.txt", "--data.batch_size", "64", "--run.epochs", "1"]
    code, out, err = opstage("train", "gpt", *words, "--out", "run")
    assert (code, err) == (0, "")
    held = checkpoint.load(tmp_path / "run" / "checkpoint")
    assert "head.weight" not in held.trainer.params and held.trainer.tied == {}
    assert opstage("train", "--resume", "run")[0] == 0
    # in a process of its own: what it writes are bytes, of which nobody promises that they are UTF-8
    main = "from opstage.cli.main import main; main()"
    sampled = [sys.executable, "-c", main, "generate", "run", "--prompt", "ab", "--length", "3"]
    assert subprocess.run(sampled, cwd=tmp_path, capture_output=True, check=True).stdout
    given = {
        name: array.copy() for name, array in checkpoint.load(tmp_path / "run" / "checkpoint").trainer.params.items()
    }
    both = {**given, "lm_head.weight": given["bytes"].copy()}
    write_state_dict(tmp_path / "both.safetensors", both)
    code, out, _ = opstage("import-weights", "gpt", "both.safetensors", *size)
    assert code == 0 and "0 errors" in out
    both["lm_head.weight"] += 1
    write_state_dict(tmp_path / "apart.safetensors", both)
    code, _, err = opstage("import-weights", "gpt", "apart.safetensors", *size)
    assert code == 2 and "lm_head.weight: no parameter takes it" in err
