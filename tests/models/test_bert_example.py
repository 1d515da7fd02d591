"""examples/bert.py: its shapes, its gradients, and what it may and may not look at."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, UsageError, optim
from opstage.init import build
from opstage.interop.weights import write_named
from opstage.ops.trees import map_leaves, paths
from opstage.safetensors_files import encode
from opstage.source_files import load_file
from opstage.training.trainer import scalar_trainer
from opstage.training.validate import check_step
from tests.docs.blocks import ROOT
from tests.models.common import FLOAT64, require_gradients

bert = load_file(ROOT / "examples" / "bert.py")

SIZES = {"vocabulary": 23, "length": 9, "width": 12, "depth": 2, "heads": 3, "hidden": 20, "padding": 0, "mask": 1}
TINY = bert.Config(**SIZES, dropout=0.0)
CLASSES = bert.Config(**SIZES, dropout=0.0, classes=4)
BACKENDS = [Options(dtype="float64", backend=backend) for backend in ("eager", "compiled")]


def parameters(config: Any = TINY) -> Any:
    generator = np.random.default_rng(0)
    declared = build(bert.parameters(config), dtype="float64", seed=1)
    return map_leaves(lambda p: p + 0.3 * generator.normal(size=p.shape), declared)


def texts(rows: int = 3, length: int = 7) -> Any:
    return np.random.default_rng(4).integers(2, TINY.vocabulary, (rows, length))


def logits(params: Any, x: Any, *kinds: Any, config: Any = TINY, options: Options = FLOAT64) -> Any:
    return opstage.run(partial(bert.logits, config=config), params, x, *kinds, options=options)


@pytest.mark.parametrize("classes", [0, 2])
def test_the_training_step_is_right_for_every_batch_and_length(classes: int) -> None:
    made = bert.make(bert.Config(classes=classes))
    report = check_step(made.loss, made.init, *made.batch)
    assert report.ok, str(report)
    assert "B*T**2" in str(report.cost)


@pytest.mark.parametrize("config", [TINY, CLASSES], ids=["tokens", "classes"])
def test_every_position_is_seen_from_every_other(config: Any) -> None:
    params, x = parameters(config), texts(1)
    before = logits(params, x, config=config)
    for place in range(7):
        changed = x.copy()
        changed[0, place] = 2 + (changed[0, place] - 1) % 21
        after = logits(params, changed, config=config)
        assert after.shape == before.shape and np.all(np.any(before != after, axis=-1))


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: options.backend)
def test_padding_is_seen_from_nowhere(options: Options) -> None:
    params, x = parameters(), texts()
    padded = np.concatenate([x, np.zeros((3, 2), np.int64)], axis=1)
    np.testing.assert_allclose(
        logits(params, padded, options=options)[:, :7], logits(params, x, options=options), rtol=1e-11, atol=1e-12
    )
    nothing = logits(params, np.zeros((1, 4), np.int64), options=options)
    assert np.isfinite(nothing).all(), "a text of padding alone"


def test_kinds_are_those_of_the_first_text_unless_given() -> None:
    params, x = parameters(), texts()
    np.testing.assert_array_equal(logits(params, x), logits(params, x, np.zeros_like(x)))
    assert not np.allclose(logits(params, x), logits(params, x, np.ones_like(x)))


def test_both_interpreters_agree() -> None:
    for config in (TINY, CLASSES):
        eager, compiled = (logits(parameters(config), texts(), config=config, options=o) for o in BACKENDS)
        np.testing.assert_allclose(compiled, eager, rtol=1e-11, atol=1e-12)


def test_gradients() -> None:
    x = texts()
    x[1, 5:] = 0
    y = np.where(x % 3 == 0, x, -100)
    # a key's bias shifts all scores of a query alike, which a softmax does not see
    require_gradients(bert.make(TINY), x, y, none=("attention.key.bias",))
    require_gradients(bert.make(CLASSES), x, np.array([0, 3, 2]), none=("attention.key.bias",))


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: options.backend)
@pytest.mark.parametrize("classes", [0, 4])
def test_training_lowers_the_loss(classes: int, options: Options) -> None:
    made, x = bert.make(bert.Config(**SIZES, classes=classes)), texts(4)
    y = np.array([0, 1, 2, 3]) if classes else np.where(np.arange(7) == 3, x, -100)
    x = x if classes else np.where(np.arange(7) == 3, TINY.mask, x)
    trainer = scalar_trainer(made.loss, build(made.init, dtype="float64"), *made.batch, options=options)
    optimizer = optim.adamw(0.02)
    state, losses = trainer.init_optim(optimizer), []
    for _ in range(30):
        result = trainer.train_step(optimizer, state, x, y)
        state = result.state
        losses.append(float(result.loss))
    assert losses[-1] < 0.5 * losses[0]


def test_masked_tokens_are_labels_and_no_others() -> None:
    data = bert.masked(opstage.data.from_arrays(x=texts(200)), TINY, seed=3)
    x, y = data["x"], data["y"]
    assert ((x == TINY.mask) == (y != -100)).all()
    np.testing.assert_array_equal(np.where(y != -100, y, x), texts(200))
    assert 0.1 < (y != -100).mean() < 0.2


# Files ----------------------------------------------------------------------------------------------------------------

CONFIG = {
    "vocab_size": 23,
    "max_position_embeddings": 9,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.0,
    "pad_token_id": 0,
}


def written(folder: Path, tensors: dict[str, Any], **changes: Any) -> Path:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "model.safetensors").write_bytes(encode(tensors))
    return folder


def test_weights_under_the_names_of_the_first_files(tmp_path: Path) -> None:
    tensors = write_named(parameters(), bert.names("bert."))
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): array
        for name, array in tensors.items()
    }
    assert sum("gamma" in name for name in old) == 6
    more = {"bert.embeddings.position_ids": np.arange(9), "cls.seq_relationship.weight": np.zeros((2, 12))}
    config, params, new = bert.load(written(tmp_path, {**old, **more, "bert.pooler.dense.weight": np.zeros((12, 12))}))
    assert new == [] and paths(params) == paths(parameters())
    np.testing.assert_array_equal(logits(params, texts(), config=config), logits(parameters(), texts()))


def test_an_encoder_alone_gets_new_heads(tmp_path: Path) -> None:
    own = parameters()
    encoder = {name: part for name, part in own.items() if name != "fill"}
    folder = written(tmp_path, write_named(encoder, bert.names("")))
    assert bert.load(folder)[2] == ["fill"]
    config, params, new = bert.load(folder, classes=4)
    assert new == ["pool", "classifier"]
    assert logits(params, texts(), config=config).shape == (3, 4)


def test_what_is_missing_or_too_much_is_one_error(tmp_path: Path) -> None:
    tensors = write_named(parameters(), bert.names("bert."))
    tensors["bert.extra"] = tensors.pop("bert.encoder.layer.1.output.dense.bias")
    tensors["bert.embeddings.LayerNorm.bias"] = np.zeros(13)
    with pytest.raises(UsageError) as error:
        bert.load(written(tmp_path, tensors))
    for line in (
        "blocks.1.mlp.down.bias: there is no tensor bert.encoder.layer.1.output.dense.bias",
        "norm.beta: expected (12,), but bert.embeddings.LayerNorm.bias is (13,)",
        "no parameter takes bert.extra (12,)",
    ):
        assert line in str(error.value)


def test_what_the_encoder_does_not_compute_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config.json: hidden_act: expected 'gelu', .* but found 'relu'"):
        bert.load(written(tmp_path, {}, hidden_act="relu"))
    with pytest.raises(UsageError, match=r"config.json: hidden_size: expected a whole number"):
        bert.load(written(tmp_path, {}, hidden_size="wide"))
    with pytest.raises(UsageError, match=r"config.json: cannot be read"):
        bert.load(tmp_path / "nowhere")
