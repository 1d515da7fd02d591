"""The map from a file's tensors to parameters, by proposal or by a table of names: what it refuses, read both ways."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from opstage import Options, scalar_trainer
from opstage.init import Declaration, build, zeros
from opstage.interop.weights import (
    WeightMap,
    export_weights,
    import_weights,
    pytorch_names,
    read_named,
    read_state_dict,
    write_named,
    write_state_dict,
)
from opstage.interop.weights.mapping import likeness, read_name
from opstage.interop.weights.proposal import propose
from opstage.models import MODELS, model
from opstage.ops.errors import UsageError
from opstage.ops.trees import flatten
from opstage.training.trainer import ScalarTrainer

Shapes = dict[str, tuple[int, ...]]


def arrays(shapes: Shapes, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def sources(found: WeightMap) -> dict[str, str]:
    return {row.path: str(row.source) if row.source else row.why for row in found.rows}


@pytest.mark.parametrize(
    ("name", "module", "role", "words", "numbers"),
    [
        ("h.0.ln_1.bias", "h.0.ln_1", "bias", ("block", "norm"), (0, 1)),
        ("blocks.0.norm1.beta", "blocks.0.norm1", "bias", ("block", "norm"), (0, 1)),
        ("transformer.wte.weight", "transformer.wte", "weight", ("embedding",), ()),
        ("positions", "positions", "weight", ("position",), ()),
        ("layers.2.self_attn.in_proj_weight", "layers.2.self_attn.in_proj", "weight", None, (2,)),
        ("blocks.3.mlp.c_proj.weight", "blocks.3.mlp.c_proj", "weight", ("block", "mlp"), (3, 2)),
        ("blocks.3.mlp.down.weight", "blocks.3.mlp.down", "weight", ("block", "mlp"), (3, 2)),
        ("blocks.1.second.kernel", "blocks.1.second", "weight", ("block",), (1, 2)),
        ("bn1.running_var", "bn1", "variance", ("norm",), (1,)),
        ("lstm.weight_hh_l0", "lstm.hh_l0", "weight", None, (0,)),
        ("weight", "", "weight", (), ()),
    ],
)
def test_names(name: str, module: str, role: str, words: Any, numbers: tuple[int, ...]) -> None:
    read = read_name(name)
    assert (read.module, read.role, read.numbers) == (module, role, numbers)
    assert words is None or read.words == words


def test_likeness() -> None:
    a = read_name("blocks.0.attention.out.weight")
    assert likeness(a, read_name("h.0.attn.c_proj.weight")) == 1
    assert likeness(a, read_name("h.0.attn.q_proj.weight")) < 1
    assert likeness(a, read_name("wpe.weight")) == 0


def test_the_same_names_need_nothing() -> None:
    shapes: Shapes = {"a.weight": (3, 3), "a.bias": (3,), "b.weight": (3, 3), "b.bias": (3,)}
    found = propose(shapes, arrays(shapes))
    assert found.errors == []
    assert sources(found) == {name: name for name in shapes}
    assert {row.why for row in found.rows} == {"same name"}


def test_numbers_count_by_their_rank() -> None:
    """Layers of one shape, numbered with gaps, after one of another shape."""
    ours: Shapes = {f"layers.{i}.weight": (8, 8) for i in range(12)}
    theirs: Shapes = {f"{3 * i + 4}.weight": (8, 8) for i in range(12)} | {"1.running_note": (5,)}
    found = propose(ours, arrays(theirs))
    assert sources(found) == {f"layers.{i}.weight": f"{3 * i + 4}.weight" for i in range(12)}
    assert found.errors == ["1.running_note: no parameter takes it"]


def test_a_bias_tells_how_a_weight_lies() -> None:
    ours: Shapes = {"up.weight": (8, 2), "up.bias": (8,), "down.weight": (2, 8), "down.bias": (2,)}
    theirs: Shapes = {"x.kernel": (2, 8), "x.bias": (8,), "y.kernel": (8, 2), "y.bias": (2,)}
    assert sources(propose(ours, arrays(theirs))) == {
        "up.weight": "x.kernel (transposed)",
        "up.bias": "x.bias",
        "down.weight": "y.kernel (transposed)",
        "down.bias": "y.bias",
    }


def test_a_square_weight_lies_as_the_others_do() -> None:
    ours: Shapes = {"a.weight": (8, 2), "a.bias": (8,), "b.weight": (8, 8), "b.bias": (8,)}
    turned: Shapes = {"a.weight": (2, 8), "a.bias": (8,), "b.weight": (8, 8), "b.bias": (8,)}
    assert sources(propose(ours, arrays(turned)))["b.weight"] == "b.weight (transposed)"
    assert sources(propose(ours, arrays(ours)))["b.weight"] == "b.weight"
    both = {**ours, "c.weight": (8, 3), "c.bias": (8,)}
    found = propose(both, arrays({**turned, "c.weight": (8, 3), "c.bias": (8,)}))
    assert found.errors[0] == "b.weight (8, 8): ambiguous: b is square, and other layers lie both ways"
    found = propose(both, arrays({**turned, "c.weight": (8, 3), "c.bias": (8,)}), {"b.weight": "b.weight:T"})
    assert found.errors == []


def test_channels_last_kernels_and_axes_of_one() -> None:
    ours: Shapes = {"conv.kernel": (6, 4, 3, 5), "conv.bias": (6,), "positions": (7, 4), "scale": ()}
    theirs = arrays({"conv.kernel": (3, 5, 4, 6), "conv.bias": (6,), "pos_embed": (1, 7, 4), "scale": (1,)})
    found = propose(ours, theirs)
    assert sources(found)["conv.kernel"] == "conv.kernel (axes (3, 2, 0, 1))"
    read = found.read(theirs)
    assert read["conv.kernel"][2, 1, 0, 4] == theirs["conv.kernel"][0, 4, 1, 2]
    assert np.array_equal(read["positions"], theirs["pos_embed"][0])
    assert read["scale"].shape == ()


def test_what_has_no_single_best_is_ambiguous() -> None:
    ours: Shapes = {"left.weight": (4, 2), "right.weight": (4, 2)}
    found = propose(ours, arrays({"alpha.weight": (4, 2), "omega.weight": (4, 2)}))
    assert found.errors == [
        "left.weight (4, 2): ambiguous: alpha or omega would do",
        "right.weight (4, 2): ambiguous: alpha or omega would do",
        "alpha.weight: no parameter takes it",
        "omega.weight: no parameter takes it",
    ]
    with pytest.raises(UsageError, match=r"the file does not fit the model:\n  left\.weight .*\n(.*\n)+name a tensor"):
        found.require_complete("the file")
    # One decision is enough: the other is then the only one left.
    assert (
        propose(ours, arrays({"alpha.weight": (4, 2), "omega.weight": (4, 2)}), {"left.weight": "omega.weight"}).errors
        == []
    )


def test_what_is_missing_or_left_over_is_an_error() -> None:
    ours: Shapes = {"a.weight": (4, 2), "a.bias": (4,), "b.weight": (9, 9)}
    found = propose(ours, arrays({"a.weight": (4, 2), "c.weight": (3, 5)}))
    assert found.errors == [
        "a.bias (4,): missing: a has no bias",
        "b.weight (9, 9): missing: no layer of the file has its shape",
        "c.weight: no parameter takes it",
    ]
    assert (
        propose({"a.weight": (4, 2)}, arrays({"a.weight": (4, 2), "c.weight": (3, 5)}), {"-": "c.weight"}).errors == []
    )


def test_bookkeeping_and_shared_tensors_may_be_left_over() -> None:
    file = arrays({"wte.weight": (6, 4)})
    file |= {
        "lm_head.weight": file["wte.weight"].copy(),
        "bn.num_batches_tracked": np.array(3),
        "mask": np.ones(3, bool),
    }
    assert propose({"tokens": (6, 4)}, file).errors == []


def test_wrong_choices() -> None:
    ours: Shapes = {"a.weight": (4, 2)}
    file = arrays({"b.weight": (2, 4)})
    assert propose(ours, file, {"a.weight": "b.weight:T"}).errors == []
    assert "a.weight (4, 2): b.weight that you chose is (2, 4)" in propose(ours, file, {"a.weight": "b.weight"}).errors
    assert "there is no tensor 'c' in the file" in propose(ours, file, {"a.weight": "c"}).errors[0]
    assert "there is no parameter 'z'" in propose(ours, file, {"z": "b.weight"}).errors[-1]


@pytest.mark.parametrize("turn", [False, True])
def test_a_fused_layer_is_cut_and_put_together_again(turn: bool) -> None:
    parts = ("query", "key", "value", "out")
    ours: Shapes = {
        f"blocks.0.attention.{p}.{r}": (4, 4) if r == "weight" else (4,) for p in parts for r in ("weight", "bias")
    }
    file = arrays(
        {
            "h.0.attn.c_attn.weight": (4, 12) if turn else (12, 4),
            "h.0.attn.c_attn.bias": (12,),
            "h.0.attn.c_proj.weight": (4, 4),
            "h.0.attn.c_proj.bias": (4,),
        }
    )
    found = propose(ours, file)
    assert found.errors == []
    read = found.read(file)
    whole = file["h.0.attn.c_attn.weight"].T if turn else file["h.0.attn.c_attn.weight"]
    for i, part in enumerate(("query", "key", "value")):
        assert np.array_equal(read[f"blocks.0.attention.{part}.weight"], whole[4 * i : 4 * i + 4])
        assert np.array_equal(read[f"blocks.0.attention.{part}.bias"], file["h.0.attn.c_attn.bias"][4 * i : 4 * i + 4])
    written = found.write(read, {name: np.zeros_like(array) for name, array in file.items()})
    assert all(np.array_equal(written[name], file[name]) for name in file)


def test_a_cell_of_pytorch_has_two_biases_whose_sum_is_ours() -> None:
    """Six inputs and six cells, so that shapes do not tell what reads the input from what reads the state."""
    ours: Shapes = {"cell.input": (24, 6), "cell.recurrent": (24, 6), "cell.bias": (24,), "head.weight": (5, 6)}
    for rest, prefix in (("_l0", "lstm."), ("_l0", ""), ("", "reader.cell.")):
        names = {
            f"{prefix}{kind}_{side}{rest}": (24, 6) if kind == "weight" else (24,)
            for kind in ("bias", "weight")
            for side in ("hh", "ih")
        }
        file = arrays({**names, "fc.weight": (5, 6)})
        found = propose(ours, file)
        assert found.errors == []
        assert sources(found) == {
            "cell.input": f"{prefix}weight_ih{rest}",
            "cell.recurrent": f"{prefix}weight_hh{rest}",
            "cell.bias": f"{prefix}bias_ih{rest} + {prefix}bias_hh{rest}",
            "head.weight": "fc.weight",
        }
        read = found.read(file)
        assert np.array_equal(read["cell.bias"], file[f"{prefix}bias_hh{rest}"] + file[f"{prefix}bias_ih{rest}"])
        assert np.array_equal(read["cell.recurrent"], file[f"{prefix}weight_hh{rest}"])
        written = found.write(read, file)
        assert np.array_equal(written[f"{prefix}bias_ih{rest}"], read["cell.bias"])
        assert not written[f"{prefix}bias_hh{rest}"].any()
        assert all(np.array_equal(found.read(written)[path], array) for path, array in read.items())


def test_a_choice_for_one_part_of_a_cell_leaves_the_others_to_the_proposal() -> None:
    ours: Shapes = {"cell.input": (8, 3), "cell.recurrent": (8, 2), "cell.bias": (8,)}
    file = arrays({"lstm.weight_ih_l0": (8, 3), "lstm.weight_hh_l0": (8, 2), "lstm.bias_ih_l0": (8,), "other": (8, 3)})
    found = propose(ours, file, {"cell.input": "other", "-": "lstm.weight_ih_l0"})
    assert found.errors == []
    assert sources(found)["cell.bias"] == "lstm.bias_ih_l0"


def test_the_table_shows_every_row_and_every_error() -> None:
    found = propose({"a.weight": (4, 2), "b.weight": (3, 3)}, arrays({"a.kernel": (2, 4), "z": (7,)}))
    console = Console(width=120, file=io.StringIO())
    console.print(found.table())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for part in (
        "a.kernel (transposed)",
        "(2, 4)",
        "missing: no layer of the file has its shape",
        "no parameter takes it",
    ):
        assert part in text


def make_trainer(dtype: str = "float32", **more: Any) -> ScalarTrainer:
    return scalar_trainer(
        lambda ops, p, x: ops.sum(ops.linear(p["layer"]["weight"], p["layer"]["bias"], x)),
        {"layer": {"weight": np.ones((3, 2)), "bias": np.zeros(3)}},
        options=Options(dtype=dtype),  # type: ignore[arg-type]
        **more,
    )


def test_a_trainer_takes_weights_whole_or_not_at_all(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.step(0.1, np.ones((1, 2)))
    file = arrays({"fc.weight": (2, 3), "fc.bias": (3,)})
    write_state_dict(tmp_path / "w.safetensors", file)
    import_weights(trainer, read_state_dict(tmp_path / "w.safetensors"))
    assert np.array_equal(trainer.get_params()["layer"]["weight"], file["fc.weight"].T.astype(np.float32))
    assert trainer.steps_taken == 1
    before = trainer.get_params()["layer"]["weight"]
    with pytest.raises(UsageError, match=r"layer\.bias \(3,\): missing: fc has no bias"):
        import_weights(trainer, arrays({"fc.weight": (2, 3)}, seed=1))
    with pytest.raises(UsageError, match=r"layer\.weight: the file holds int64 values; expected float32"):
        import_weights(trainer, {"fc.weight": np.ones((3, 2), np.int64), "fc.bias": np.ones(3)})
    assert np.array_equal(trainer.get_params()["layer"]["weight"], before)


def test_out_and_in_again() -> None:
    trainer = make_trainer("float64")
    trainer.step(0.1, np.ones((1, 2)))
    values = trainer.export()
    like = {**arrays({"net.0.weight": (2, 3), "net.0.bias": (3,)}), "net.tracked": np.array(True)}
    written = export_weights(values, like)
    assert list(written) == list(like)
    other = make_trainer("float64")
    import_weights(other, written)
    assert all(np.array_equal(other.export().params[path], array) for path, array in values.params.items())
    import_weights(other, export_weights(values))


def test_shared_tensors_stay_shared() -> None:
    trainer = scalar_trainer(lambda ops, p, x: ops.sum(ops.mul(p["tokens"], x)), {"tokens": np.ones((3, 2))})
    like = arrays({"wte.weight": (3, 2)})
    written = export_weights(trainer.export(), {**like, "lm_head.weight": like["wte.weight"].copy()})
    assert np.array_equal(written["lm_head.weight"], np.ones((3, 2)))


def test_pytorchs_names() -> None:
    given = arrays(
        {"a.kernel": (1,), "b.norm.gamma": (1,), "b.norm.beta": (1,), "b.norm.mean": (1,), "positions": (2,)}
    )
    assert list(pytorch_names(given)) == [
        "a.weight",
        "b.norm.weight",
        "b.norm.bias",
        "b.norm.running_mean",
        "positions",
    ]
    cell = arrays({"a.cell.input": (8, 3), "a.cell.recurrent": (8, 2), "a.cell.bias": (8,), "b.input": (2,)})
    named = pytorch_names(cell)
    parts = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    assert list(named) == [*(f"a.cell.{part}" for part in parts), "b.input"]
    assert not named["a.cell.bias_hh_l0"].any()
    with pytest.raises(UsageError, match="two parameters would have one name in PyTorch"):
        pytorch_names(arrays({"a.kernel": (1,), "a.weight": (1,)}))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_shipped_model_takes_back_what_it_gave(name: str) -> None:
    """Under PyTorch's names, and in another order."""
    chosen = model(name)

    def make(seed: int) -> ScalarTrainer:
        params = build(chosen.init, dtype="float32", seed=seed)
        state = None if chosen.state is None else build(chosen.state, dtype="float32", seed=seed)
        return scalar_trainer(chosen.loss, params, options=Options(validate=False), state=state)

    given, taker = make(1).export(), make(2)
    tensors = export_weights(given)
    import_weights(taker, {path: tensors[path] for path in sorted(tensors, reverse=True)})
    found = taker.export()
    assert all(np.array_equal(found.params[path], array) for path, array in given.params.items())
    assert all(np.array_equal(found.state[path], array) for path, array in given.state.items())


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(UsageError, match=r"model\.pt: not a safetensors file but a pickle, which could run code"):
        read_state_dict(tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"none\.safetensors: cannot be read: No such file"):
        read_state_dict(tmp_path / "none.safetensors")
    with pytest.raises(UsageError, match="cannot be written"):
        write_state_dict(tmp_path / "no" / "folder.safetensors", arrays({"a": (1,)}))


# Tables of names ------------------------------------------------------------------------------------------------------

DECLARED: Any = {
    "layers": [{"w": Declaration((2, 3), zeros), "parts": [Declaration((1,), zeros)] * 2} for _ in range(2)],
    "h2o": Declaration((), zeros),
}
NAMES = {"layers.{}.w": "model.{}.weight", "layers.{}.parts.{}": "model.{}.part{}.weight", "h2o": "water"}


def tensors() -> dict[str, Any]:
    made = {f"model.{i}.weight": np.full((2, 3), float(i)) for i in range(2)}
    made |= {f"model.{i}.part{j}.weight": np.array([10.0 * i + j]) for i in range(2) for j in range(2)}
    return {**made, "water": np.array(5.0)}


def test_both_ways() -> None:
    given = tensors()
    found = read_named(DECLARED, given, NAMES)
    assert found["layers"][1]["parts"][0] is given["model.1.part0.weight"], "nothing is copied"
    assert found["h2o"] == 5 and len(flatten(found)[0]) == 7
    again = write_named(found, NAMES)
    assert set(again) == set(given) and all(again[name] is given[name] for name in given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"water": None}, "h2o: there is no tensor water"),
        ({"water": np.zeros(2)}, r"h2o: expected \(\), but water is \(2,\)"),
        ({"fire": np.zeros(2)}, r"no parameter takes fire \(2,\)"),
        ({"model.0.weight": np.zeros((3, 2))}, r"layers.0.w: expected \(2, 3\), but model.0.weight is \(3, 2\)"),
    ],
)
def test_tensors_that_do_not_fit(change: dict[str, Any], message: str) -> None:
    given = {name: array for name, array in {**tensors(), **change}.items() if array is not None}
    with pytest.raises(UsageError, match=message):
        read_named(DECLARED, given, NAMES)


def test_what_is_ignored() -> None:
    read_named(DECLARED, {**tensors(), "a.inv_freq": np.zeros(2)}, NAMES, ignore=["inv_freq"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"h2o": None}, "h2o has no name in the table"),
        ({"h2o": "model.{}"}, "must have as many {} as h2o"),
        ({"layers.{}.w": "model.weight"}, "must have as many {} as layers"),
        ({"h2o": "model.0.weight"}, "model.0.weight is the name of two parameters"),
    ],
)
def test_tables_that_are_wrong(change: dict[str, Any], message: str) -> None:
    names = {path: name for path, name in {**NAMES, **change}.items() if name is not None}
    with pytest.raises(UsageError, match=message):
        read_named(DECLARED, tensors(), names)


def test_of_many_errors_the_first_are_shown() -> None:
    many = {f"p{i}": Declaration((1,), zeros) for i in range(100)}
    with pytest.raises(UsageError, match="and 80 more"):
        read_named(many, {}, {name: name for name in many})
