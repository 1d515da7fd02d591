"""The decoder and the encoder in examples/ against the classes of transformers, by way of the files that those write.

Random weights, saved by their `save_pretrained`, in one file or several; outputs, and the gradients of all parameters.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is asked of a network

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import opstage
from opstage import Options
from opstage.interop.weights import write_named
from opstage.ops.errors import UsageError
from opstage.source_files import load_file
from tests.docs.blocks import ROOT

llama = load_file(ROOT / "examples" / "llama.py")
bert = load_file(ROOT / "examples" / "bert.py")

SIZES: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 24,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
}
TOLERANCE = {"float64": (1e-9, 1e-11), "float32": (1e-4, 1e-5)}
"""Relative and absolute, to the largest of a tensor."""


def require_close(ours: Any, theirs: torch.Tensor, dtype: str, what: str = "") -> None:
    expected = theirs.detach().numpy()
    relative, absolute = TOLERANCE[dtype]
    assert ours.dtype == expected.dtype == np.dtype(dtype)
    np.testing.assert_allclose(
        ours, expected, rtol=relative, atol=absolute + relative * np.abs(expected).max(), err_msg=what
    )


def randomised(net: Any, dtype: str) -> Any:
    """Every tensor of its own, norms and biases too, so that no mix-up goes unseen."""
    torch.manual_seed(5)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.copy_(0.3 * torch.randn_like(tensor) + (1.0 if tensor.dim() == 1 else 0.0))
    return net.to(getattr(torch, dtype)).eval()


def require_same_gradients(net: Any, gradients: Any, names: dict[str, str], dtype: str) -> None:
    """Those of all parameters of ours are theirs of those names."""
    theirs = dict(net.named_parameters())
    ours = write_named(gradients, names)
    assert ours
    for name, gradient in ours.items():
        require_close(gradient, theirs[name].grad, dtype, name)
    with_gradient = {name for name, parameter in theirs.items() if parameter.grad is not None}
    assert with_gradient <= set(ours), "a parameter of theirs takes part, and none of ours"


# Llama ----------------------------------------------------------------------------------------------------------------


class ExactNorm(torch.nn.Module):
    """RMS normalisation in the dtype of x: that of transformers rounds float64 to float32."""

    def __init__(self, norm: Any):
        super().__init__()
        self.weight, self.eps = norm.weight, norm.variance_epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.rms_norm(x, x.shape[-1:], self.weight, self.eps)


class ExactAngles(torch.nn.Module):
    """Rotary angles in the dtype of x, likewise."""

    def __init__(self, angles: Any, config: Any):
        super().__init__()
        size, theta = config.head_dim, config.rope_parameters["rope_theta"]
        rates = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        plain = angles.compute_default_rope_parameters(config)[0].double()
        self.rates = rates * exact_ratio(angles.inv_freq.double() / plain, rates, config.rope_parameters)

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        angle = position_ids[..., None].to(torch.float64) * torch.cat([self.rates, self.rates])
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)


def exact_ratio(rounded: torch.Tensor, rates: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """By how much rotations are slowed down, whose rounded values transformers has; by the formula of its Llama 3.1."""
    ratio = torch.ones_like(rates)
    if rope["rope_type"] == "llama3":
        length, low, high = (
            rope[key] for key in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        )
        for i, rate in enumerate(rates.tolist()):
            wave = 2 * math.pi / rate
            smooth = (length / wave - low) / (high - low)
            if wave > length / low:
                ratio[i] = 1 / rope["factor"]
            elif wave >= length / high:
                ratio[i] = (1 - smooth) / rope["factor"] + smooth
        assert len(set(ratio.tolist())) > 2, "slowed down, not, and in between"
    torch.testing.assert_close(rounded, ratio, rtol=1e-6, atol=0)
    return ratio


def exact(net: Any) -> Any:
    """The model with what rounds to float32 replaced, parameters and their names kept."""
    for layer in net.model.layers:
        layer.input_layernorm = ExactNorm(layer.input_layernorm)
        layer.post_attention_layernorm = ExactNorm(layer.post_attention_layernorm)
    net.model.norm = ExactNorm(net.model.norm)
    net.model.rotary_emb = ExactAngles(net.model.rotary_emb, net.config)
    return net


def llama_net(dtype: str, **changes: Any) -> Any:
    rope = {"rope_type": "default", "rope_theta": 500.0}
    sizes = {**SIZES, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_parameters": rope, "pad_token_id": None}
    return randomised(transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes})), dtype)


LLAMAS: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one head of keys": {"num_key_value_heads": 1},
    "a head of keys each": {"num_key_value_heads": 6},
    "tied": {"tie_word_embeddings": True},
    "heads of another size": {"head_dim": 10},
    "stretched": {
        "head_dim": 12,
        "max_position_embeddings": 64,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
        },
    },
}


@pytest.mark.parametrize("shard", ["50GB", "8KB"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", LLAMAS)
def test_the_decoder(tmp_path: Path, case: str, dtype: Any, shard: str) -> None:
    net = llama_net(dtype, **LLAMAS[case])
    net.save_pretrained(tmp_path, max_shard_size=shard)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 3) == (shard == "8KB")
    config, params = llama.load(tmp_path)
    net = exact(net) if dtype == "float64" else net
    x, y = tokens(37, 2, 11), tokens(37, 2, 11, seed=1)

    logits = net(torch.from_numpy(x)).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(y).flatten()).backward()
    for backend in ("eager", "compiled"):
        options = Options(dtype=dtype, backend=backend)
        require_close(opstage.run(partial(llama.logits, config=config), params, x, options=options), logits, dtype)
        _, gradients = opstage.value_and_grad(partial(llama.loss, config=config), params, x, y, options=options)
        require_same_gradients(net, gradients, llama.NAMES, dtype)


def tokens(vocabulary: int, *shape: int, seed: int = 0, least: int = 0) -> Any:
    return np.random.default_rng(seed).integers(least, vocabulary, shape)


@pytest.mark.parametrize("narrow", ["bfloat16", "float16"])
def test_weights_of_16_bits(tmp_path: Path, narrow: str) -> None:
    llama_net("float32").to(getattr(torch, narrow)).save_pretrained(tmp_path, max_shard_size="8KB")
    net = transformers.LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, local_files_only=True)
    config, params = llama.load(tmp_path)
    x = tokens(37, 2, 11)
    found = opstage.run(partial(llama.logits, config=config), params, x)
    require_close(found, net(torch.from_numpy(x)).logits, "float32")


def test_rounding_to_float32_is_all_that_was_replaced(tmp_path: Path) -> None:
    net = llama_net("float64")
    net.save_pretrained(tmp_path)
    config, params = llama.load(tmp_path)
    x = tokens(37, 2, 11)
    expected = net(torch.from_numpy(x)).logits.detach().numpy()
    found = opstage.run(partial(llama.logits, config=config), params, x, options=Options(dtype="float64"))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_is_generated(tmp_path: Path) -> None:
    net = llama_net("float32")
    net.save_pretrained(tmp_path, max_shard_size="8KB")
    config, params = llama.load(tmp_path)
    x = tokens(37, 3, 5)
    made = net.generate(
        torch.from_numpy(x), attention_mask=torch.ones(3, 5), max_new_tokens=11, do_sample=False, eos_token_id=None
    )
    for backend in ("eager", "compiled"):
        found = llama.generate(config, params, x, 11, Options(backend=backend))
        np.testing.assert_array_equal(found, made[:, 5:].numpy())


def test_the_decoder_written_for_transformers(tmp_path: Path) -> None:
    net = llama_net("float32")
    net.save_pretrained(tmp_path / "theirs")
    _, params = llama.load(tmp_path / "theirs")
    llama.save(tmp_path / "ours", params)
    (tmp_path / "ours" / "config.json").write_bytes((tmp_path / "theirs" / "config.json").read_bytes())
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", local_files_only=True)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}},
    ],
)
def test_what_the_decoder_does_not_compute_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    llama_net("float32", **changes).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="is not what is computed here"):
        llama.load(tmp_path)


# BERT -----------------------------------------------------------------------------------------------------------------


def bert_net(kind: Any, dtype: str, **changes: Any) -> Any:
    return randomised(
        kind(transformers.BertConfig(**{**SIZES, "type_vocab_size": 2, "pad_token_id": 0, **changes})), dtype
    )


def texts() -> tuple[Any, Any]:
    """Tokens, one text padded, and of which of two texts each is."""
    x = tokens(37, 3, 11, least=1)
    kinds = (np.arange(11) > 6) * np.ones((3, 1), np.int64)
    x[1, 8:] = 0
    return x, kinds


def theirs(net: Any, x: Any, kinds: Any, **more: Any) -> Any:
    return net(torch.from_numpy(x), torch.from_numpy((x != 0).astype(np.int64)), torch.from_numpy(kinds), **more)


@pytest.mark.parametrize("shard", ["50GB", "8KB"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_encoder(tmp_path: Path, dtype: Any, shard: str) -> None:
    net = bert_net(transformers.BertModel, dtype)
    net.save_pretrained(tmp_path, max_shard_size=shard)
    config, params, new = bert.load(tmp_path, classes=3)
    assert new == ["classifier"]
    x, kinds = texts()

    def program(ops: Any, params: Any, x: Any, kinds: Any) -> Any:
        h = bert.encode(ops, params, x, kinds, config=config)
        return h, bert.pooled(ops, params, h)

    there = np.broadcast_to((x != 0)[..., np.newaxis], (*x.shape, config.width)).astype(dtype)

    def scalar(ops: Any, params: Any, x: Any, kinds: Any, there: Any) -> Any:
        states, pooled = program(ops, params, x, kinds)
        return ops.add(ops.sum(ops.mul(there, ops.square(states))), ops.sum(pooled))

    out = theirs(net, x, kinds)
    ((torch.from_numpy(there) * out.last_hidden_state.square()).sum() + out.pooler_output.sum()).backward()
    encoder = {name: part for name, part in params.items() if name != "classifier"}
    for backend in ("eager", "compiled"):
        options = Options(dtype=dtype, backend=backend)
        states, pooled = opstage.run(program, params, x, kinds, options=options)
        require_close(states, out.last_hidden_state, dtype)
        require_close(pooled, out.pooler_output, dtype)
        _, gradients = opstage.value_and_grad(scalar, encoder, x, kinds, there, options=options)
        require_same_gradients(net, gradients, bert.names(""), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_head_for_masked_tokens(tmp_path: Path, dtype: Any) -> None:
    net = bert_net(transformers.BertForMaskedLM, dtype)
    net.save_pretrained(tmp_path, max_shard_size="8KB")
    config, params, new = bert.load(tmp_path)
    assert new == []
    x, kinds = texts()
    y = np.where((tokens(2, 3, 11, seed=3) == 1) & (x != 0), x, -100)

    def scalar(ops: Any, params: Any, x: Any, kinds: Any, y: Any) -> Any:
        out = bert.logits(ops, params, x, kinds, config=config)
        return ops.cross_entropy(ops.flatten(out, end=1), ops.flatten(y))

    out = theirs(net, x, kinds, labels=torch.from_numpy(y))
    out.loss.backward()
    found = opstage.run(partial(bert.logits, config=config), params, x, kinds, options=Options(dtype=dtype))
    require_close(found, out.logits, dtype)
    for backend in ("eager", "compiled"):
        options = Options(dtype=dtype, backend=backend)
        _, gradients = opstage.value_and_grad(scalar, params, x, kinds, y, options=options)
        require_same_gradients(net, gradients, bert.names("bert."), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_head_for_classes(tmp_path: Path, dtype: Any) -> None:
    net = bert_net(transformers.BertForSequenceClassification, dtype, num_labels=5)
    net.save_pretrained(tmp_path)
    config, params, new = bert.load(tmp_path, classes=5)
    assert new == []
    x, kinds = texts()
    out = theirs(net, x, kinds)
    found = opstage.run(partial(bert.logits, config=config), params, x, kinds, options=Options(dtype=dtype))
    require_close(found, out.logits, dtype)
    with pytest.raises(UsageError, match=r"classifier.weight: expected \(4, 24\), but classifier.weight is \(5, 24\)"):
        bert.load(tmp_path, classes=4)


def test_the_encoder_written_for_transformers(tmp_path: Path) -> None:
    net = bert_net(transformers.BertForMaskedLM, "float32")
    net.save_pretrained(tmp_path / "theirs")
    _, params, _ = bert.load(tmp_path / "theirs")
    bert.save(tmp_path / "ours", params)
    (tmp_path / "ours" / "config.json").write_bytes((tmp_path / "theirs" / "config.json").read_bytes())
    again = transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours", local_files_only=True)
    for name, parameter in net.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name)), name
