"""Tensor names of other libraries, parsed into a form that can be compared.

A name has three meaningful parts: the *role* of the tensor in its layer (weight, bias, mean, variance), the *words*
that identify the layer, and the *numbers* that index it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ROLES = {
    "weight": "weight",
    "kernel": "weight",
    "gamma": "weight",
    "bias": "bias",
    "beta": "bias",
    "running_mean": "mean",
    "mean": "mean",
    "running_var": "variance",
    "variance": "variance",
    "var": "variance",
}

# Synonyms; "" for words that do not help to identify a layer.
_SAME = {
    **dict.fromkeys(("module", "model", "transformer", "net", "self", "c", "orig", "mod", "weight", "table"), ""),
    **dict.fromkeys(("linear", "dense", "conv", "lin", "features"), ""),
    **dict.fromkeys(("h", "layers", "layer", "blocks", "block"), "block"),
    **dict.fromkeys(("attn", "attention"), "attention"),
    **dict.fromkeys(("q", "query", "wq"), "query"),
    **dict.fromkeys(("k", "key", "wk"), "key"),
    **dict.fromkeys(("v", "value", "wv"), "value"),
    **dict.fromkeys(("ln", "layernorm", "bn", "batchnorm", "groupnorm", "gn", "norms"), "norm"),
    **dict.fromkeys(("wte", "tok", "token", "tokens", "emb", "embed", "embedding", "embeddings", "bytes"), "embedding"),
    **dict.fromkeys(("wpe", "pos", "position", "positions", "positional"), "position"),
    **dict.fromkeys(("mlp", "ffn", "ff", "feedforward"), "mlp"),
    **dict.fromkeys(("head", "lm", "classifier", "logits"), "head"),
    **dict.fromkeys(("cell", "lstm", "rnn"), "cell"),
    **dict.fromkeys(("downsample", "shortcut", "projection", "skip"), "shortcut"),
}
_ORDINALS = {"first": 1, "second": 2, "third": 3, "fourth": 4}
_OUT = {"proj", "o", "out", "wo"}


class TensorName(NamedTuple):
    """A parsed tensor name; `module` is the name without the role."""

    module: str
    role: str
    words: tuple[str, ...]
    numbers: tuple[int, ...]


def read_name(name: str) -> TensorName:
    """`h.0.ln_1.bias` -> module `h.0.ln_1`, role bias, words (block, norm), numbers (0, 1).

    A name without a role, such as `positions`, is all module, with role weight.
    """
    module, role = _split_role(name)
    words: list[str] = []
    numbers: list[int] = []
    for part in re.findall(r"[0-9]{1,18}|[A-Z]?[a-z]+|[A-Z]+", module):
        if part.isdigit():
            numbers.append(int(part))
            continue
        word = part.lower()
        if word in _OUT and "attention" in words:
            word = "out"
        elif "mlp" in words and word in ("up", "fc", "down", *_OUT):  # the two linear layers of a transformer's MLP
            numbers.append(1 if word in ("up", "fc") else 2)
            continue
        if word in _ORDINALS:
            numbers.append(_ORDINALS[word])
        elif _SAME.get(word, word) and _SAME.get(word, word) not in words:
            words.append(_SAME.get(word, word))
    return TensorName(module, role, tuple(words), tuple(numbers))


def likeness(a: TensorName, b: TensorName) -> float:
    """Return the similarity of the words, from 0 to 1 (Dice's coefficient)."""
    if not a.words and not b.words:
        return 0.5
    return 2 * len(set(a.words) & set(b.words)) / (len(a.words) + len(b.words))


def pytorch_name(path: str) -> str:
    """Return the name in PyTorch's layers: `blocks.0.norm.gamma` -> `blocks.0.norm.weight`."""
    head, _, last = path.rpartition(".")
    theirs = {"kernel": "weight", "gamma": "weight", "beta": "bias", "mean": "running_mean", "variance": "running_var"}
    return f"{head}.{theirs.get(last, last)}" if head else theirs.get(last, last)


def _split_role(name: str) -> tuple[str, str]:
    head, _, last = name.rpartition(".")
    if last in _ROLES:
        return head, _ROLES[last]
    for word in ("weight", "bias"):  # in_proj_weight, and the LSTM's weight_ih_l0
        if last.endswith(f"_{word}") or last.startswith(f"{word}_"):
            rest = last.removesuffix(f"_{word}").removeprefix(f"{word}_")
            return f"{head}.{rest}" if head else rest, word
    return name, "weight"
