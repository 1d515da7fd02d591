"""Tensors under several names, and parameters at several places, in and out of safetensors files."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from opstage import Param, ScalarTrainer, UsageError, scalar_trainer
from opstage.files import Document
from opstage.init import build
from opstage.interop.weights import export_weights, import_weights, propose_for, read_state_dict, write_state_dict
from opstage.models import gpt
from opstage.ops.tied_parameters import Places
from opstage.ops.trees import flatten
from opstage.safetensors_files import encode, read_header
from opstage.training.snapshot import TrainerValues, from_document, take_snapshot, to_document

Tensors = dict[str, Any]


def loss(ops: Any, params: Any, x: Any) -> Any:
    h = ops.linear(params["out"]["weight"], None, ops.linear(params["table"], None, x))
    return ops.sum(ops.mul(h, params["gain"]))


def trainer(*, tied: bool) -> ScalarTrainer:
    rng = np.random.default_rng(1)
    first, second, gain = (Param(rng.standard_normal(s).astype(np.float32)) for s in ((5, 5), (5, 5), 5))
    tree = {"table": first, "out": {"weight": first if tied else second}, "gain": gain}
    return scalar_trainer(loss, tree)


def file_of(**tensors: Any) -> Tensors:
    rng = np.random.default_rng(2)
    made: Tensors = {"gain": rng.standard_normal(5).astype(np.float32)}
    for name, value in tensors.items():
        made[name.replace("_", ".")] = rng.standard_normal((5, 5)).astype(np.float32) if value is None else value
    return made


W = np.arange(25, dtype=np.float32).reshape(5, 5)


@pytest.mark.parametrize(
    "tensors",
    [
        file_of(table=W),
        file_of(out_weight=W),
        file_of(table=W, out_weight=W),
        file_of(table=W, out_weight=W.copy()),
        file_of(embedding_weight=W),
        file_of(net_out_weight=W),
    ],
    ids=["its name", "its other place", "both, one array", "both, two arrays", "a like name", "like the other place"],
)
def test_a_tied_parameter_is_found_by_any_of_its_names(tensors: Tensors) -> None:
    ours = trainer(tied=True)
    found = import_weights(ours, tensors)
    assert {row.path for row in found.rows} == {"gain", "out.weight"}
    np.testing.assert_array_equal(ours.get_params()["table"], W)
    np.testing.assert_array_equal(ours.get_params()["gain"], tensors["gain"])
    (row,) = (row for row in found.rows if row.path == "out.weight")
    assert row.why.endswith("tied to table")


def test_two_tensors_for_one_parameter_are_refused() -> None:
    ours = trainer(tied=True)
    before = ours.get_params()
    with pytest.raises(UsageError, match="no parameter takes it"):
        import_weights(ours, file_of(table=W, out_weight=W + 1))
    with pytest.raises(UsageError, match=r"out\.weight = table is one parameter, but a and b are chosen"):
        import_weights(ours, file_of(a=W, b=W + 1), {"table": "a", "out.weight": "b"})
    assert ours.get_params()["table"].tobytes() == before["table"].tobytes()
    import_weights(ours, file_of(a=W, b=W + 1), {"table": "a", "-": "b"})
    np.testing.assert_array_equal(ours.get_params()["out"]["weight"], W)


def test_a_file_keeps_a_shared_tensor_once_with_both_names(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    ours = trainer(tied=True)
    written = export_weights(ours.export())
    assert written["table"] is written["out.weight"]
    write_state_dict(path, written)
    assert sorted(read_header(path)) == ["gain", "out.weight"]
    again = read_state_dict(path)
    assert again["table"] is again["out.weight"] and list(again) == sorted(again)
    np.testing.assert_array_equal(again["table"], ours.get_params()["table"])
    for tied in (True, False):  # one that has two parameters there gets both, and is told that they were one
        other = trainer(tied=tied)
        found = {row.path: row.why for row in import_weights(other, again).rows}
        assert tied or found["table"].endswith("; shared there with out.weight")
        assert tied or found["out.weight"].endswith("; shared there with table")
        assert "shared" not in found["gain"]
        np.testing.assert_array_equal(other.get_params()["table"], ours.get_params()["table"])
        np.testing.assert_array_equal(other.get_params()["out"]["weight"], ours.get_params()["table"])


def test_names_that_the_metadata_give_only_where_they_stand_for_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    metadata = {"format": "pt", "other": "a", "a": "b", "lost": "nowhere"}
    path.write_bytes(encode({"a": W, "b": W + 1, "pt": W}, metadata))
    read = read_state_dict(path)
    assert sorted(read) == ["a", "b", "other", "pt"]
    assert read["other"] is read["a"] and not np.array_equal(read["a"], read["b"])
    write_state_dict(path, {"format": W, "b": W, "a": W})
    assert sorted(read_state_dict(path)) == ["a", "b", "format"]


def test_a_file_to_be_like_says_what_is_shared(tmp_path: Path) -> None:
    shared, twice = file_of(table=W, out_weight=W), file_of(table=W, out_weight=W.copy())
    ours = trainer(tied=True).export()
    for like in (shared, twice):
        written = export_weights(ours, like)
        assert (written["table"] is written["out.weight"]) is (like is shared)
        for name in ("table", "out.weight"):
            np.testing.assert_array_equal(written[name], ours.params["out.weight"])
    apart = trainer(tied=False).export()
    with pytest.raises(UsageError, match=r"out\.weight and table are one tensor in the file to be like.*differ"):
        export_weights(apart, shared)
    equal = {**apart.params, "table": apart.params["out.weight"]}
    written = export_weights(TrainerValues(equal), shared)
    assert written["table"] is written["out.weight"]


@pytest.mark.slow
def test_safetensors_own_functions_read_and_write_such_files(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_model, save_model

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.randn(5, 5))
            self.out = torch.nn.Linear(5, 5, bias=False)
            self.out.weight = self.table
            self.gain = torch.nn.Parameter(torch.randn(5))

    net, path = Net(), tmp_path / "net.safetensors"
    save_model(net, str(path))
    assert len(read_header(path)) == 2
    for tied in (True, False):
        ours = trainer(tied=tied)
        import_weights(ours, read_state_dict(path))
        np.testing.assert_array_equal(ours.get_params()["out"]["weight"], net.table.detach().numpy())
        np.testing.assert_array_equal(ours.get_params()["table"], net.table.detach().numpy())
    ours = trainer(tied=True)
    for like in (None, read_state_dict(path)):
        write_state_dict(path, export_weights(ours.export(), like))
        other = Net()
        load_model(other, path)
        np.testing.assert_array_equal(other.table.detach().numpy(), ours.get_params()["table"])
        np.testing.assert_array_equal(other.gain.detach().numpy(), ours.get_params()["gain"])


def test_a_gpt_with_tied_weights_takes_a_file_with_the_head_once_or_twice() -> None:
    config = gpt.Config(length=8, width=12, depth=1, heads=3, hidden=20, tie_weights=True)
    given = build(gpt.init(config), seed=3)
    values = dict(zip(Places.of(given).paths, flatten(given)[0]))
    ours = build(gpt.init(config), seed=4)
    blank = TrainerValues(dict(zip(Places.of(ours).paths, flatten(ours)[0])))
    for names in (["transformer.wte.weight"], ["lm_head.weight"], ["transformer.wte.weight", "lm_head.weight"]):
        tensors = {**values, **dict.fromkeys(names, values["bytes"])}
        del tensors["bytes"]
        found = propose_for(blank, tensors)
        assert found.errors == []
        np.testing.assert_array_equal(found.read(tensors)["bytes"], values["bytes"])


def test_names_from_a_file_are_neither_markup_nor_commands_to_a_terminal() -> None:
    name = "[red]\x1b[2Jtable"
    found = propose_for(TrainerValues({"table": W}), {name: W, "[bold]other": W + 1})
    console = Console(width=200, force_terminal=False, file=io.StringIO())
    with console.capture() as capture:
        console.print(found.table())
    text = capture.get()
    assert "[red]\\x1b[2Jtable" in text and "[bold]other" in text and "\x1b" not in text


@pytest.mark.parametrize(
    "tied",
    [
        {"table": []},
        {"table": ["table"]},
        {"table": ["gain", "other"]},
        {"table": ["table", "gain"]},
        {"table": ["table", "other", "other"]},
        {"table": ["table", "other"], "gain": ["gain", "other"]},
        {"lost": ["lost", "other"]},
        {"table": "table"},
        {"table": ["table", 3]},
        ["table"],
    ],
    ids=str,
)
def test_a_manifest_whose_ties_contradict_its_tensors(tied: Any) -> None:
    tensors, document = to_document(take_snapshot(trainer(tied=False)))
    tensors = {"params/table": tensors["params/table"], "params/gain": tensors["params/gain"]}
    with pytest.raises(UsageError, match="tied"):
        from_document(tensors, Document({**document, "tied": tied}, "checkpoint.json"))
    good = {"table": ["table", "other"]}
    assert from_document(tensors, Document({**document, "tied": good}, "")).trainer.tied == {
        "table": ("table", "other")
    }
