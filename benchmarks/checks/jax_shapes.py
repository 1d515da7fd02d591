"""JAX: `jax.eval_shape` of the loss, and of loss, gradients and AdamW, at one batch size and one length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.sides.jax_jit import adamw_step, gpt_loss, gpt_shapes
from benchmarks.workloads import Gpt


def parts(w: Gpt) -> dict[str, Callable[[], Any]]:
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32), gpt_shapes(w), is_leaf=lambda x: isinstance(x, tuple)
    )
    tokens = jax.ShapeDtypeStruct((w.batch, w.length), jnp.int32)
    scalar = jax.ShapeDtypeStruct((), jnp.float32)

    # a fresh function each time: the second trace of the same one would come from a cache
    def forward() -> Any:
        return jax.eval_shape(gpt_loss(w), params, tokens, tokens)

    def whole() -> Any:
        return jax.eval_shape(adamw_step(gpt_loss(w)), params, params, params, scalar, tokens, tokens)

    return {"forward": forward, "whole step": whole}
