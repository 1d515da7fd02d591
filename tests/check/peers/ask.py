"""Asks JAX and PyTorch about every mistake and notes their answers in answers.tsv: `python -m tests.check.peers.ask`.

Needs both libraries. Each is asked twice: at one size of everything (`jax.eval_shape`, tensors on PyTorch's device
`meta`), and for all sizes of the names at once (`jax.export` with symbolic shapes, `torch.export` with dynamic ones).
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import export

from . import jax_programs, torch_programs
from .answers import note
from .shapes import SHAPES, SIZES


def split(text: str) -> tuple[list[str], str]:
    """`B 10 int64` -> names and sizes as text, and the dtype."""
    words = text.split()
    return (words[:-1], words[-1]) if words[-1] == "int64" else (words, "float32")


def concrete(text: str) -> tuple[tuple[int, ...], str]:
    words, dtype = split(text)
    return tuple(SIZES.get(word) or int(word) for word in words), dtype


def answer(ask: Callable[[], Any], program: Callable[..., Any]) -> dict[str, Any]:
    """The verdict; of an error the first line, how many lines a user sees, and how many come before the user's own."""
    file = program.__code__.co_filename
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ask()
    except Exception as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames)).rstrip()
        lines = text.splitlines()
        own = [i for i, line in enumerate(lines) if file in line]
        message = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {message[0]}"
        return {
            "says": said.replace(str(Path(file).parent) + "/", ""),
            "lines": len(lines),
            "before": own[-1] if own else None,
        }
    return {}


def asked_jax(name: str) -> dict[str, Any]:
    program = jax_programs.PROGRAMS[name]

    def at_one_size() -> Any:
        return jax.eval_shape(program, *(jax.ShapeDtypeStruct(*concrete(text)) for text in SHAPES[name]))

    def at_every_size() -> Any:
        scope = export.SymbolicScope()
        specs = []
        for text in SHAPES[name]:
            words, dtype = split(text)
            shape = export.symbolic_shape(", ".join(words), scope=scope)
            specs.append(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))
        return export.export(jax.jit(program))(*specs)

    return {"eval_shape": answer(at_one_size, program), "jax.export": answer(at_every_size, program)}


class _Module(torch.nn.Module):
    def __init__(self, program: Callable[..., Any]):
        super().__init__()
        self.program = program

    def forward(self, *args: Any) -> Any:
        return self.program(*args)


def asked_torch(name: str) -> dict[str, Any]:
    program = torch_programs.PROGRAMS[name]
    shapes = [concrete(text) for text in SHAPES[name]]

    def at_one_size() -> Any:
        return program(*(torch.empty(shape, dtype=getattr(torch, dtype), device="meta") for shape, dtype in shapes))

    def at_every_size() -> Any:
        torch._dynamo.reset()
        args = tuple(torch.zeros(shape, dtype=getattr(torch, dtype)) for shape, dtype in shapes)
        dims = {
            word: torch.export.Dim(word, min=1) for text in SHAPES[name] for word in split(text)[0] if word in SIZES
        }
        dynamic = tuple(
            {axis: dims[word] for axis, word in enumerate(split(text)[0]) if word in dims} for text in SHAPES[name]
        )
        return torch.export.export(_Module(program), args, dynamic_shapes=(dynamic,))

    return {"meta": answer(at_one_size, program), "torch.export": answer(at_every_size, program)}


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    torch.set_num_threads(1)
    versions = {library.__name__: library.__version__.split("+")[0] for library in (jax, torch)}
    note(versions, {name: {**asked_jax(name), **asked_torch(name)} for name in SHAPES})


if __name__ == "__main__":
    main()
