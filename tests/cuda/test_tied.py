"""A Param at two places is one parameter on a device too: the mirror, its gradient, its update, in either backend."""

from __future__ import annotations

import numpy as np
import pytest

import opstage
from opstage import Options, Param, Session, optim
from tests.training.test_tied import CLIPS, batch, loss, same, single_tree, start, tied_tree, untied


@pytest.mark.parametrize("clip", ["none", "by global norm"])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_tied_parameter_is_updated_once(backend: str, clip: str) -> None:
    options, optimizer = Options(backend=backend, device="cuda"), optim.adamw(0.1)
    tied = opstage.scalar_trainer(loss, tied_tree(), options=options, clip=CLIPS[clip])
    single = opstage.scalar_trainer(untied, single_tree(), options=options, clip=CLIPS[clip])
    host = opstage.scalar_trainer(loss, tied_tree(), clip=CLIPS[clip])
    states = [each.init_optim(optimizer) for each in (tied, single, host)]
    for seed in range(3):
        losses = [each.advance(optimizer, state, batch(seed)).loss for each, state in zip((tied, single, host), states)]
        assert losses[0] == losses[1]
        np.testing.assert_allclose(losses[0], losses[2], rtol=1e-5)
    same(tied, single)
    np.testing.assert_allclose(tied.get_params()["encoder"], host.get_params()["encoder"], rtol=1e-4, atol=1e-5)
    gradients = tied.backward(batch())
    assert gradients["encoder"] is gradients["decoder"]
    assert tied.export().tied == {"decoder": ("decoder", "encoder")} and len(tied.export().params) == 2


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_session_on_a_device(backend: str) -> None:
    session = Session(Options(backend=backend, device="cuda"))
    w, c = (session.param(value) for value in start())
    refs = {"encoder": session.use(w), "decoder": session.use(w), "offset": session.use(c)}
    session.backward(loss(session, refs, session.input(batch())))
    session.sgd_step_all(0.1)
    trainer = opstage.scalar_trainer(loss, tied_tree())
    trainer.step(0.1, batch())
    np.testing.assert_allclose(w.value, trainer.get_params()["encoder"], rtol=1e-5, atol=1e-6)


def test_a_planned_parameter_is_made_once() -> None:
    from opstage.init import Placement, Uniform

    def product(ops: opstage.Ops, params: dict[str, opstage.Ref], x: opstage.Ref) -> opstage.Ref:
        return ops.sum(ops.mul(ops.mul(params["a"], params["b"]), x))

    w = Param.planned(Placement("w", (3,), Uniform(1.0, 2.0, 7)))
    first = Uniform(1.0, 2.0, 7).materialise((3,))
    trainer = opstage.scalar_trainer(product, {"a": w, "b": w}, options=Options(device="cuda"))
    trainer.step(0.1, np.ones(3, np.float32))
    np.testing.assert_allclose(w.value, first - 0.2 * first, rtol=1e-5)
