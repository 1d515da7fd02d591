"""examples/llama.py on the GPU: whole texts, and the cache, whose rows are written at places that are tensors."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import opstage
from opstage import Options
from opstage.init import build
from opstage.source_files import load_file
from tests.docs.blocks import ROOT

llama = load_file(ROOT / "examples" / "llama.py")
TINY = llama.Config(vocabulary=11, length=5, width=6, depth=1, heads=2, kv_heads=1, head_size=4, hidden=7)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_logits_of_whole_texts_and_of_the_cache(backend: str) -> None:
    options = Options(device="cuda", backend=backend)
    params, x = build(llama.parameters(TINY), seed=1), np.random.default_rng(0).integers(0, 11, (1, 4))
    expected = opstage.run(partial(llama.logits, config=TINY), params, x)
    whole = opstage.run(partial(llama.logits, config=TINY), params, x, options=options)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-6)
    cache = llama.empty_cache(TINY, 1)
    for start, stop in ((0, 3), (3, 4)):
        program = partial(llama.step, config=TINY)
        found, cache = opstage.run(program, params, x[:, start:stop], np.array(start), cache, options=options)
        np.testing.assert_allclose(found, expected[:, start:stop], rtol=1e-4, atol=1e-6)
