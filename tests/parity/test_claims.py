"""Decoders of transformers, exported and loaded: causal where their mask is, and shown to leak without it."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: nothing is asked of a network

from typing import Any

import pytest
import torch
import transformers

import opstage
import opstage.onnx
import opstage.torch
from opstage.facts import Causal, Independent

BATCH, LENGTH = torch.export.Dim("B", min=1, max=64), torch.export.Dim("T", min=2, max=32)


class Logits(torch.nn.Module):
    """The logits of a decoder for numbers of tokens (B, T), and a mask of them, if one is given."""

    def __init__(self, net: Any):
        super().__init__()
        self.net = net

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.net(input_ids=ids, attention_mask=mask, use_cache=False).logits


def _gpt2(attention: str = "sdpa") -> Any:
    sizes = {"vocab_size": 50, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation=attention)
    )


def _llama(**changes: Any) -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, **changes}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=50, num_key_value_heads=1, max_position_embeddings=32, **sizes)
    )


def _bert() -> Any:
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=50, **sizes))


def _unmasked_llama() -> Any:
    """The decoder, every position of which sees all others."""
    return _llama(num_hidden_layers=1, is_causal=False)


def _verdicts(net: Any) -> list[str]:
    torch.manual_seed(0)
    example = (torch.zeros(2, 5, dtype=torch.long),)
    program = torch.export.export(Logits(net.eval()), example, dynamic_shapes=({0: BATCH, 1: LENGTH},))
    model = opstage.torch.load(program)
    held = model.trees
    claims = [Causal("T"), Independent("B")]
    report = opstage.check(model, *held, *model.inputs.values(), train=False, claims=claims)
    return [verdict.state for verdict in report.claims]


@pytest.mark.parametrize("make", [_gpt2, _llama], ids=["gpt2", "llama"])
def test_a_decoder_is_causal_for_every_batch_and_length(make: Any) -> None:
    assert _verdicts(make()) == ["proved", "proved"]


@pytest.mark.parametrize("make", [_bert, _unmasked_llama], ids=["bert", "llama without its mask"])
def test_without_a_mask_the_future_is_seen(make: Any) -> None:
    assert _verdicts(make()) == ["refuted", "proved"]


def _by_onnx(net: Any, path: Any, legacy: bool) -> list[str]:
    """The same of a file that PyTorch writes. The older of its exporters writes masks of -inf, and takes a mask of
    tokens too; the newer one the least float, which hides what it masks where the weights have bounds."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    tokens = torch.zeros(2, 5, dtype=torch.long)
    if legacy:
        names, example = ["ids", "mask"], (tokens, torch.ones_like(tokens))
        axes = {name: {0: "B", 1: "T"} for name in names}
        wrapped = Logits(net.eval())
        torch.onnx.export(wrapped, example, path, dynamo=False, input_names=names, dynamic_axes=axes, opset_version=17)
    else:
        sizes = ({0: BATCH, 1: LENGTH},)
        torch.onnx.export(Logits(net.eval()), (tokens,), path, dynamo=True, dynamic_shapes=sizes, verbose=False)
    model = opstage.onnx.load(path, where=["T <= 32"])  # that of their positions
    held = model.trees
    claims, bounds = [Causal("T"), Independent("B")], {"params.*": (-2.0, 2.0)}
    report = opstage.check(model, *held, *model.inputs.values(), train=False, claims=claims, bounds=bounds)
    assert all(verdict.witness is not None for verdict in report.claims if verdict.state == "refuted")
    return [verdict.state for verdict in report.claims]


@pytest.mark.parametrize("legacy", [False, True], ids=["newer exporter", "older exporter"])
@pytest.mark.parametrize("make", [_gpt2, _llama], ids=["gpt2", "llama"])
def test_the_mask_that_transformers_builds_is_followed(make: Any, legacy: bool, tmp_path: Any) -> None:
    """It is read at joined positions, for sequences that are packed one behind another."""
    assert _by_onnx(make(), tmp_path / "net.onnx", legacy) == ["proved", "proved"]


def test_without_a_mask_the_future_is_seen_in_a_file(tmp_path: Any) -> None:
    assert _by_onnx(_unmasked_llama(), tmp_path / "net.onnx", False) == ["refuted", "proved"]


def test_a_mask_of_finite_numbers_is_undecided() -> None:
    """Eager attention adds the least float32; whether that is enough depends on the scores."""
    assert _verdicts(_gpt2("eager")) == ["undecided", "proved"]
