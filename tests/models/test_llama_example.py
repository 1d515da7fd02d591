"""examples/llama.py: its shapes, its gradients, and that the cache gives what the whole text does."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, UsageError, optim
from opstage.init import build
from opstage.interop.weights import read_weights, write_named, write_weights
from opstage.ops.errors import RangeError
from opstage.ops.trees import map_leaves
from opstage.source_files import load_file
from opstage.training.trainer import scalar_trainer
from opstage.training.validate import check_step
from tests.docs.blocks import ROOT
from tests.models.common import FLOAT64, require_gradients

llama = load_file(ROOT / "examples" / "llama.py")

SIZES = {
    "vocabulary": 23,
    "length": 10,
    "width": 12,
    "depth": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 6,
    "hidden": 20,
}
TINY = llama.Config(**SIZES)
CONFIGS = {
    "grouped": TINY,
    "tied": llama.Config(**SIZES, tie_weights=True),
    "stretched": llama.Config(**SIZES, stretch=(8.0, 1.0, 4.0, 200.0)),
    "one for all": llama.Config(**{**SIZES, "kv_heads": 1}),
    "one for each": llama.Config(**{**SIZES, "kv_heads": 4}),
}
RATIO = (200 / (2 * np.pi) * 10000 ** (-1 / 3) - 1) / (4 - 1)
"""Where the second of three rotations stands between those that are slowed down and those that are not."""
BACKENDS = [Options(dtype="float64", backend=backend) for backend in ("eager", "compiled")]


def parameters(config: Any = TINY) -> Any:
    generator = np.random.default_rng(0)
    declared = build(llama.parameters(config), dtype="float64", seed=1)
    return map_leaves(lambda p: p + 0.3 * generator.normal(size=p.shape), declared)


def texts(rows: int = 3, length: int = 9) -> Any:
    return np.random.default_rng(4).integers(0, TINY.vocabulary, (rows, length))


def logits(params: Any, x: Any, config: Any = TINY, options: Options = FLOAT64) -> Any:
    return opstage.run(partial(llama.logits, config=config), params, x, options=options)


def by_hand(params: Any, x: Any, config: Any) -> Any:
    """The logits of one text with loops, complex numbers for the rotation."""

    def norm(h: Any, gamma: Any) -> Any:
        return h / np.sqrt((h**2).mean() + config.eps) * gamma

    def turned(h: Any, place: int) -> Any:
        half = config.head_size // 2
        rates = config.theta ** (-2 * np.arange(half) / config.head_size)
        if config.stretch:  # 200 places are 31.8 turns of the first, 1.5 of the second, less than 1 of the third
            rates = rates * np.array([1, (1 - RATIO) / 8 + RATIO, 1 / 8])
        pairs = (h[:half] + 1j * h[half:]) * np.exp(1j * place * rates)
        return np.concatenate([pairs.real, pairs.imag])

    def parts(h: Any) -> Any:
        return h.reshape(-1, config.head_size)

    hs = [params["tokens"][token] for token in x]
    for p in params["blocks"]:
        seen = [norm(h, p["norm1"]) for h in hs]
        keys = [[turned(part, t) for part in parts(p["key"] @ h)] for t, h in enumerate(seen)]
        values = [parts(p["value"] @ h) for h in seen]
        for t, h in enumerate(seen):
            out = []
            for head, query in enumerate(parts(p["query"] @ h)):
                of = head // (config.heads // config.kv_heads)
                scores = [turned(query, t) @ keys[s][of] / np.sqrt(config.head_size) for s in range(t + 1)]
                weights = np.exp(scores) / np.exp(scores).sum()
                out.append(sum(w * values[s][of] for s, w in enumerate(weights)))
            hs[t] = hs[t] + p["out"] @ np.concatenate(out)
        for t, h in enumerate(hs):
            n = norm(h, p["norm2"])
            gate = p["gate"] @ n
            hs[t] = h + p["down"] @ (gate / (1 + np.exp(-gate)) * (p["up"] @ n))
    head = params["tokens"] if config.tie_weights else params["head"]
    return np.stack([head @ norm(h, params["norm"]) for h in hs])


@pytest.mark.parametrize("case", CONFIGS)
def test_logits_are_those_of_the_formulas(case: str) -> None:
    config = CONFIGS[case]
    params, x = parameters(config), texts()
    expected = [by_hand(params, row, config) for row in x]
    for options in BACKENDS:
        np.testing.assert_allclose(logits(params, x, config, options), expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("tie_weights", [False, True])
def test_the_training_step_is_right_for_every_batch_and_length(tie_weights: bool) -> None:
    made = llama.make(llama.Config(tie_weights=tie_weights))
    report = check_step(made.loss, made.init, *made.batch)
    assert report.ok, str(report)
    assert "B*T**2" in str(report.cost)


def test_a_step_with_the_cache_is_right_for_every_batch_and_length() -> None:
    shape = ("B", TINY.kv_heads, TINY.length, TINY.head_size)
    cache = [{"key": Spec(shape), "value": Spec(shape)} for _ in range(TINY.depth)]
    program = partial(llama.step, config=TINY)
    report = opstage.check(
        program, llama.parameters(TINY), Spec("B T", dtype="int64"), Spec("", dtype="int64"), cache, train=False
    )
    assert report.ok, str(report)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: options.backend)
@pytest.mark.parametrize("cuts", [range(10), (0, 4, 5, 9), (0, 9), (0, 1, 9)], ids=str)
@pytest.mark.parametrize("case", CONFIGS)
def test_the_cache_gives_the_logits_of_the_whole_text(case: str, cuts: Any, options: Options) -> None:
    """At every step, token by token and in pieces: by what was written before, whatever follows."""
    config = CONFIGS[case]
    params, x = parameters(config), texts()
    whole, program = logits(params, x, config), partial(llama.step, config=config)
    cache = llama.empty_cache(config, 3, "float64")
    for start, stop in itertools.pairwise(cuts):
        found, cache = opstage.run(program, params, x[:, start:stop], np.array(start), cache, options=options)
        np.testing.assert_allclose(found, whole[:, start:stop], rtol=1e-11, atol=1e-12)


def test_more_than_the_cache_holds_is_an_error() -> None:
    cache = llama.empty_cache(TINY, 3)
    for options in BACKENDS:
        with pytest.raises(RangeError, match="out of range"):
            opstage.run(partial(llama.step, config=TINY), parameters(), texts(), np.array(2), cache, options=options)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: options.backend)
def test_what_is_generated_is_what_whole_texts_give(options: Options) -> None:
    params, x = parameters(), texts(length=3)
    expected = x
    for _ in range(7):
        expected = np.concatenate([expected, logits(params, expected)[:, -1:].argmax(-1)], axis=1)
    np.testing.assert_array_equal(llama.generate(TINY, params, x, 7, options), expected[:, 3:])
    assert llama.generate(TINY, params, x, 0, options).shape == (3, 0)


@pytest.mark.parametrize(("length", "count"), [(3, 8), (0, 1), (3, -1)])
def test_what_cannot_be_generated(length: int, count: int) -> None:
    with pytest.raises(UsageError, match=r"do not go into the 10 places"):
        llama.generate(TINY, parameters(), texts(length=length), count)


def test_gradients() -> None:
    x = texts(2, 9)
    require_gradients(llama.make(TINY), x[:, :-1], x[:, 1:])
    require_gradients(llama.make(CONFIGS["tied"]), x[:, :-1], x[:, 1:])


def test_gradients_are_the_same_compiled() -> None:
    params, x = parameters(), texts(2, 9)
    program = partial(llama.loss, config=TINY)
    eager, compiled = (opstage.value_and_grad(program, params, x[:, :-1], x[:, 1:], options=o) for o in BACKENDS)
    flat, other = (write_named(gradients, llama.NAMES) for _, gradients in (eager, compiled))
    for name, gradient in flat.items():
        np.testing.assert_allclose(other[name], gradient, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("options", BACKENDS, ids=lambda options: options.backend)
def test_training_lowers_the_loss(options: Options) -> None:
    made, x = llama.make(TINY), texts(4, 9)
    trainer = scalar_trainer(made.loss, build(made.init, dtype="float64"), *made.batch, options=options)
    optimizer = optim.adamw(0.02)
    state, losses = trainer.init_optim(optimizer), []
    for _ in range(25):
        result = trainer.train_step(optimizer, state, x[:, :-1], x[:, 1:])
        state = result.state
        losses.append(float(result.loss))
    assert losses[-1] < 0.5 * losses[0]


def test_a_text_longer_than_the_model_is_refused() -> None:
    made = llama.make(TINY)
    trainer = scalar_trainer(made.loss, build(made.init), *made.batch)
    with pytest.raises(opstage.ShapeError, match="T <= 10"):
        trainer.forward(texts(2, 11), texts(2, 11))


@pytest.mark.parametrize("wrong", [{"kv_heads": 3}, {"head_size": 5}])
def test_sizes_that_do_not_go_together(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="must be a multiple of kv_heads"):
        llama.Config(**{**SIZES, **wrong})


def test_mapped_weights_compute_and_train(tmp_path: Path) -> None:
    """Arrays of a file, which nothing can write to."""
    llama.save(tmp_path / "w", parameters())
    tensors = read_weights(tmp_path / "w")
    assert sorted(tensors) == sorted(write_named(parameters(), llama.NAMES))
    params = llama.read_named(llama.parameters(TINY), tensors, llama.NAMES)
    np.testing.assert_array_equal(logits(params, texts()), logits(parameters(), texts()))
    x, before = texts(4, 9), (tmp_path / "w" / "model.safetensors").read_bytes()
    for options in BACKENDS:
        trainer = scalar_trainer(llama.make(TINY).loss, params, options=options)
        optimizer = optim.sgd(0.1)
        trainer.train_step(optimizer, trainer.init_optim(optimizer), x[:, :-1], x[:, 1:])
        assert not np.array_equal(trainer.get_params()["head"], tensors["lm_head.weight"])
    assert (tmp_path / "w" / "model.safetensors").read_bytes() == before
    write_weights(tmp_path / "again", dict(tensors), shard_size="2KB")
    assert len(list((tmp_path / "again").glob("*.safetensors"))) > 3
