"""The byte-level gpt: its logits against PyTorch's formulas in NumPy, causality, training, and the sampling of text."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import opstage
from opstage import optim
from opstage.cli.main import cli
from opstage.data import text
from opstage.init import build
from opstage.models import gpt, model
from opstage.ops.errors import UsageError
from opstage.ops.trees import flatten, paths
from opstage.runs.text_generation import Sampling, generate, load_gpt
from opstage.safetensors_files import encode
from opstage.training.parameters import make_params
from opstage.training.trainer import scalar_trainer
from opstage.training.validate import check_step
from tests.searches import FULL

from .by_recipe import trained
from .common import FLOAT64, require_gradients

TINY = gpt.Config(length=8, width=12, depth=2, heads=3, hidden=20)
SMALL = gpt.Config(length=64, width=32, depth=2, heads=2, hidden=128)


def parameters(config: gpt.Config = TINY) -> dict:
    """Parameters of which none is 0 or 1, so that none can be left out unseen."""
    params = build(gpt.init(config), dtype="float64", seed=1)
    generator = np.random.default_rng(4)
    for leaf in flatten(params)[0]:
        leaf += generator.normal(scale=0.2, size=leaf.shape)
    return params


def texts(batch: int = 2, length: int = 8) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (batch, length)).astype(np.uint8)


def logits(params: dict, x: np.ndarray, config: gpt.Config = TINY) -> np.ndarray:
    return opstage.run(lambda ops, p, x: gpt.logits(ops, p, x, config=config), params, x, options=FLOAT64)


def by_hand(params: dict, x: np.ndarray) -> np.ndarray:
    """Logits of one text (T,), position by position and head by head."""

    def norm(p: dict, h: np.ndarray) -> np.ndarray:
        centred = h - h.mean()
        return centred / np.sqrt((centred**2).mean() + 1e-5) * p["gamma"] + p["beta"]

    def linear(p: dict, h: np.ndarray) -> np.ndarray:
        return p["weight"] @ h + p["bias"]

    def gelu(h: np.ndarray) -> np.ndarray:
        return 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))

    hs = [params["bytes"][byte] + params["positions"][t] for t, byte in enumerate(x)]
    size = TINY.width // TINY.heads
    for block in params["blocks"]:
        normed = [norm(block["norm1"], h) for h in hs]
        q, k, v = ([linear(block["attention"][n], h) for h in normed] for n in ("query", "key", "value"))
        for t in range(len(hs)):
            out = []
            for head in range(TINY.heads):
                part = slice(head * size, (head + 1) * size)
                scores = np.array([q[t][part] @ k[s][part] / math.sqrt(size) for s in range(t + 1)])
                weights = np.exp(scores) / np.exp(scores).sum()
                out.append(sum(w * v[s][part] for s, w in enumerate(weights)))
            hs[t] = hs[t] + linear(block["attention"]["out"], np.concatenate(out))
        hs = [h + linear(block["mlp"]["down"], gelu(linear(block["mlp"]["up"], norm(block["norm2"], h)))) for h in hs]
    return np.stack([params["head"]["weight"] @ norm(params["norm"], h) for h in hs])


def test_logits_are_those_of_the_formulas() -> None:
    params, x = parameters(), texts()
    np.testing.assert_allclose(logits(params, x), [by_hand(params, row) for row in x], rtol=1e-10, atol=1e-11)


def test_a_logit_depends_on_the_bytes_up_to_it_alone() -> None:
    params, x = parameters(), texts(1)
    changed = x.copy()
    changed[0, 5] ^= 1
    before, after = logits(params, x)[0], logits(params, changed)[0]
    np.testing.assert_array_equal(before[:5], after[:5])
    assert np.all(np.any(before[5:] != after[5:], axis=1))


def test_the_next_byte_after_a_filled_up_text_is_that_after_the_text() -> None:
    params, x = parameters(), texts(3)
    last = np.array([0, 7, 4])
    got = opstage.run(
        lambda ops, p, x, last: gpt.next_logits(ops, p, x, last, config=TINY), params, x, last, options=FLOAT64
    )
    for row, (text_, end) in enumerate(zip(x, last)):
        np.testing.assert_allclose(got[row], logits(params, text_[np.newaxis, : end + 1])[0, -1], rtol=1e-12)


def test_gradients() -> None:
    x = texts(2, 9)
    # A key's bias shifts all scores of a query alike, which a softmax does not see.
    require_gradients(model("gpt", TINY), x[:, :-1], x[:, 1:], none=("attention.key.bias",))


def test_metrics_are_bits_per_byte() -> None:
    params, x = parameters(), texts(2, 9)
    out = logits(params, x[:, :-1])
    chances = np.exp(out) / np.exp(out).sum(axis=-1, keepdims=True)
    own = np.take_along_axis(chances, x[:, 1:, np.newaxis].astype(np.int64), axis=-1)
    made = model("gpt", TINY)
    sums = opstage.run(made.metrics, params, x[:, :-1], x[:, 1:], options=FLOAT64)
    assert sums["bits_per_byte"] / sums["count"] == pytest.approx(-np.log2(own).mean(), rel=1e-12)
    assert sums["count"] == 16


def test_labels_that_are_ignored_do_not_count() -> None:
    """The metrics of held-out rows are those of the labels that are there, as the loss is."""
    params, x = parameters(), texts(2, 9)
    labels = x[:, 1:].astype(np.int64)
    labels[0, 3:] = -100
    made = model("gpt", TINY)
    sums = opstage.run(made.metrics, params, x[:, :-1], labels, options=FLOAT64)
    assert sums["count"] == 11
    loss = opstage.run(made.loss, params, x[:, :-1], labels, options=FLOAT64)
    assert sums["loss"] / sums["count"] == pytest.approx(float(loss), rel=1e-12)


def test_the_training_step_is_right_for_every_batch_and_length() -> None:
    made = model("gpt")
    report = check_step(made.loss, made.init, *made.batch)
    assert report.ok, str(report)
    assert "B*T**2" in str(report.cost), "attention is quadratic in the length"


def test_a_text_longer_than_the_context_is_refused() -> None:
    made = model("gpt", TINY)
    trainer = scalar_trainer(made.loss, build(made.init), *made.batch)
    x = texts(2, 9)
    with pytest.raises(opstage.ShapeError, match="T <= 8"):
        trainer.forward(x, x)


def test_a_short_run_learns_more_than_the_frequencies_of_bytes() -> None:
    training, held_out = gpt.text_windows(None, 0.1, SMALL)
    rows = np.arange(0, len(training), len(training) // 3200)[:3200]
    few = held_out.take(np.arange(0, len(held_out), 16))
    counts = np.bincount(training["x"].ravel(), minlength=256) + 1
    frequencies = -np.log2(counts / counts.sum())[few["y"]].mean()
    reached = trained("gpt", config=SMALL, data=(training.take(rows), few))[1].held_out["bits_per_byte"]
    assert frequencies > 4.2
    assert reached < 3.7


@pytest.mark.slow
@pytest.mark.soak
def test_the_recipe_reaches_its_goal() -> None:
    """With all of the text in `make soak`; with a quarter, as here otherwise, it comes to 3.20."""
    assert gpt.RECIPE.goal == 2.2
    parts = [part.take(np.arange(0, len(part), 1 if FULL else 4)) for part in gpt.RECIPE.data(0)]
    reached = trained("gpt", data=parts)[1].held_out["bits_per_byte"]
    assert reached < (2.2 if FULL else 3.3)


def test_sampling_follows_the_distribution() -> None:
    chances = np.array([0.5, 0.3, 0.15, 0.05])
    drawn = [Sampling(temperature=1.0, seed=2).draw(np.log(chances), n) for n in range(4000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, chances, atol=0.03)
    sharp = chances**2 / (chances**2).sum()
    drawn = [Sampling(temperature=0.5, seed=2).draw(np.log(chances), n) for n in range(4000)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, sharp, atol=0.03)
    drawn = [Sampling(temperature=1.0, top_k=2, seed=2).draw(np.log(chances), n) for n in range(500)]
    assert set(drawn) == {0, 1}
    assert {Sampling(temperature=0).draw(np.array([1.0, 3.0, 3.0]), n) for n in range(9)} == {1}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": -0.1}, "temperature must be finite and at least 0"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_k": 0}, "top_k must be from 1 to 256"),
        ({"top_k": 257}, "top_k"),
    ],
)
def test_unusable_sampling_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**wrong)


def test_generated_text_is_what_greedy_evaluation_gives_beyond_the_window_too() -> None:
    params = parameters()
    got = bytes(generate(TINY, params, b"ab", 12, Sampling(temperature=0), options=FLOAT64))
    wanted = bytearray(b"ab")
    for _ in range(12):
        recent = np.frombuffer(bytes(wanted[-8:]), np.uint8)
        wanted.append(int(by_hand(params, recent)[-1].argmax()))
    assert got == bytes(wanted[2:])


def test_the_same_seed_gives_the_same_text() -> None:
    params = build(gpt.init(TINY))
    one, again, other = (
        bytes(generate(TINY, params, b"", 20, Sampling(temperature=1.0, seed=seed))) for seed in (5, 5, 6)
    )
    assert one == again != other


def command(*arguments: str) -> tuple[int, bytes, object]:
    result = CliRunner().invoke(cli, ["generate", *arguments])
    return result.exit_code, result.stdout_bytes, result.exception


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    params = build(gpt.init(TINY))
    path = tmp_path / "tiny.safetensors"
    path.write_bytes(encode(dict(zip(paths(params), flatten(params)[0]))))
    return path


FLAGS = ("--model.length=8", "--model.width=12", "--model.depth=2", "--model.heads=3", "--model.hidden=20")


def test_the_command_prints_the_prompt_and_the_text(weights: Path) -> None:
    code, out, _ = command(str(weights), "--prompt", "def ", "--length", "30", "--seed", "3", *FLAGS)
    assert code == 0
    assert out.startswith(b"def ")
    assert command(str(weights), "--prompt", "def ", "--length", "30", "--seed", "3", *FLAGS)[1] == out
    assert command(str(weights), "--prompt", "def ", "--length", "30", "--seed", "4", *FLAGS)[1] != out


def test_the_command_takes_a_run_directory(tmp_path: Path) -> None:
    source = tmp_path / "poem.txt"
    source.write_bytes(b"Twas brillig, and the slithy toves did gyre and gimble in the wabe. " * 20)
    out = tmp_path / "run"
    result = CliRunner().invoke(
        cli, ["train", "gpt", "--data", str(source), "--out", str(out), "--batch-size=4", *FLAGS]
    )
    assert result.exit_code == 0, result.output
    config, params = load_gpt(out)
    assert config == TINY
    assert params["bytes"].shape == (256, 12)
    assert command(str(out), "--length", "10")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{weights}", "--length", "-1", *FLAGS), "length must be at least 0"),
        (("{weights}", "--temperature", "nan", *FLAGS), "temperature must be finite"),
        (("{weights}", "--top-k", "300", *FLAGS), "top_k must be from 1 to 256"),
        (("{weights}", *FLAGS[:-1]), r"blocks\.0\.mlp\.down\.weight: expected \(12, 512\) float32, found \(12, 20\)"),
        (("{weights}.none", *FLAGS), "tiny.safetensors.none"),
        (("{folder}",), "is not a run directory"),
        (("{weights}", "--backend", "shape_check", *FLAGS), "computes no values"),
        (("{weights}", "--backend", "eagre", *FLAGS), "unknown backend"),
    ],
)
def test_unusable_arguments_are_one_clear_error(weights: Path, arguments: tuple[str, ...], message: str) -> None:
    filled = [a.format(weights=weights, folder=weights.parent) for a in arguments]
    _, _, error = command(*filled)
    assert isinstance(error, UsageError)
    assert re.search(message, str(error)), str(error)


def test_a_text_that_is_empty_or_too_short_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_bytes(b"too short")
    with pytest.raises(UsageError, match=r"short\.txt: has . bytes, but a window of 128"):
        gpt.text_windows(path, 0.1, gpt.Config())
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty"):
        text.read_text(path)


TIED = gpt.Config(length=8, width=12, depth=2, heads=3, hidden=20, tie_weights=True)


def test_tied_weights_are_one_parameter() -> None:
    untied, tied = parameters(), parameters(TIED)
    assert "head" not in tied and set(untied) - set(tied) == {"head"}
    x = texts()
    both = {**tied, "head": {"weight": tied["bytes"]}}
    np.testing.assert_array_equal(logits(tied, x, TIED), logits(both, x))
    y = np.roll(x, -1, axis=1)
    losses = [partial(gpt.loss, config=config) for config in (TIED, TINY)]
    (one, gradient), (two, places) = (
        opstage.value_and_grad(f, p, x, y, options=FLOAT64) for f, p in zip(losses, (tied, both))
    )
    assert one == two
    np.testing.assert_allclose(gradient["bytes"], places["bytes"] + places["head"]["weight"], rtol=1e-9, atol=1e-12)


def test_a_param_at_both_places_trains_as_tied_weights_do() -> None:
    """The same model, tied by its layout and by one Param at two places of the other layout's tree."""
    x = texts().astype(np.int64)
    y = np.roll(x, -1, axis=1)
    tied = make_params(parameters(TIED), options=FLOAT64)
    other = make_params(parameters(TIED), options=FLOAT64)
    other["head"] = {"weight": other["bytes"]}
    optimizer = optim.adamw(1e-2)
    trainers = [
        scalar_trainer(partial(gpt.loss, config=config), params, options=FLOAT64, clip=optim.clip.by_global_norm(0.5))
        for config, params in ((TIED, tied), (TINY, other))
    ]
    assert trainers[0].parameter_count == trainers[1].parameter_count
    assert list(trainers[0].export().params) == list(trainers[1].export().params)
    states = [trainer.init_optim(optimizer) for trainer in trainers]
    for _ in range(3):
        first, second = (trainer.advance(optimizer, state, x, y).loss for trainer, state in zip(trainers, states))
        assert first == second
    np.testing.assert_array_equal(trainers[0].get_params()["bytes"], trainers[1].get_params()["head"]["weight"])
