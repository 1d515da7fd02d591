"""What docs/reference.md says of sessions, their backward passes and steps, and device buffers, row by row."""

from __future__ import annotations

import numpy as np
import pytest

import opstage
from opstage import Options, Param, Session, ShapeError, UsageError, optim
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.graph.compiled import Deferred
from opstage.interpreters.registry import make_interpreter
from opstage.optim import Adam
from opstage.training.session_tape import Gradients
from tests.docs.reference_claims import (
    AT,
    BACKENDS,
    F64,
    GRADS,
    Claim,
    Used,
    X,
    Y,
    _run,
    all_or_nothing,
    close,
    each,
    ended,
    leaves_come_first,
    module,
    numbers_are_read_later,
    on_device,
    on_tape,
    refused,
    stepped,
    trainer,
)

CLAIMS: list[tuple[list[str], Claim]] = [
    # backward and steps
    (
        ["backwardDenseAll"],
        each(
            lambda u: (
                close(u.session.grad(u.product), [6, 16])
                and close(u.session.backward(u.product, seed=[1.0, 10.0])[u.x], [1, 20])
            )
        ),
    ),
    (
        ["*backward of a scalar, seed 1*"],
        each(lambda u: close(u.session.grad(u.y), 1.0) and refused(ShapeError, lambda: u.session.backward(u.product))),
    ),
    (
        ["*backward on the CUDA tape, device gradients*"],
        lambda: isinstance((u := Used()).gradients.cotangent(u.x), np.ndarray),
    ),
    (
        ["*gradient of one ref*", "GraphData.backpropAllCtx"],
        each(lambda u: close(u.session.grad(u.x), [6, 32]) and close(u.session.grad(u.w), [18, 64])),
    ),
    (["*SGD update of all used parameters*"], each(all_or_nothing)),
    (["*SGD update from device gradients*", "sgdStepAll"], stepped("sgd_step_all", [1 - 1.8, 2 - 6.4])),
    (
        ["*Adam moment buffers*", "*Adam moments `m`*".replace("`", ""), "*Adam moments `v`*".replace("`", "")],
        lambda: close(
            (m := module(Options(dtype="float64"))).step_with(a := optim.adam(), m.init_optim(a), X, Y).slots[1],
            (0.1 * GRADS["w"], 0.001 * GRADS["w"] ** 2),
        ),
    ),
    (
        ["*Adam step counter `t`*".replace("`", "")],
        lambda: close(Adam(lr=0.5).scalars(2), {"lr": 0.5, "c1": 1 - 0.9**2, "c2": 1 - 0.999**2}),
    ),
    (["adamStepAllCuda"], stepped("adam_step_all", [0.9, 1.9], eps=0.0)),
    (
        ["*AdamW update of all used parameters*"],
        stepped("adamw_step_all", [0.95 - 0.1, 1.9 - 0.1], eps=0.0, weight_decay=0.5),
    ),
    (["TorchLean.Optim.adam"], lambda: isinstance(optim.adam(lr=0.1), Adam)),
    (
        ["TorchLean.Session", "Internal.EagerSession", "*new session*", "*empty state*", "*new proof-linked session*"],
        lambda: (
            Session().options == Options()
            and refused(opstage.ProgramError, lambda: Session().grad(Param(AT)), "no backward")
        ),
    ),
    (
        ["*dispatch of an op, no CPU fallback*"],
        lambda: refused(UsageError, lambda: make_interpreter(Options(backend="interpreted")), "unknown backend"),
    ),
    (["Runtime.Autograd.Tape", "EagerSession.tape", "GraphData.backpropCtx"], on_tape),
    (["Cuda.Tape", "EagerSession.cudaTape"], on_device("tape")),
    # sessions
    (["EagerSession.opts"], lambda: Session(F64).options == F64),
    (
        ["EagerSession.paramsByLeaf", "*use of a parameter*", "*use of a parameter in the graph*"],
        each(lambda u: u.session.use(u.w) is u.used),
    ),
    (["EagerSession.nats", "*read a NatRef*"], each(lambda u: u.session.get_nat(u.number) == 1)),
    (["resetTape", "*reset to an empty snapshot*", "*release a dense gradient array*"], each(ended)),
    (["*release a sparse gradient map*"], lambda: ended(Used(dense=False))),
    (["EagerSession.param", "SessionIR.param"], each(lambda u: u.w.name == "w" and u.w.dtype == np.float64)),
    (
        ["getValue"],
        each(
            lambda u: (
                close(u.session.get_value(u.product, shape=(2,)), [3, 8])
                and refused(ShapeError, lambda: u.session.get_value(u.product, shape=(3,)))
            )
        ),
    ),
    (["*constant leaf*"], each(lambda u: u.session.const([1.0]).record is None)),
    (["*stop-gradient*"], each(lambda u: u.session.detach(u.product).record is None)),
    (["*U[0,1) generator*"], each(lambda u: 0 <= u.session.get_value(u.session.rand_uniform(shape=(9,))).min() < 1)),
    (
        ["*mask generator*"],
        each(
            lambda u: (
                set(u.session.get_value(u.session.bernoulli_mask(u.session.const(0.5), shape=(64,))).tolist()) == {0, 1}
            )
        ),
    ),
    (["*external input*"], lambda: Session().input([1.0]).record is not None),
    (["SessionIR.input"], lambda: Session().input([1.0], requires_grad=False).record is None),
    (["*overwrite a NatRef*", "*environment of Nats*"], each(numbers_are_read_later)),
    (
        ["*a tensor of Nats as an array*", "*read a NatVecRef*"],
        lambda: (
            [(s := Session()).get_nat_vec(s.nat_vec(given)).tolist() for given in ([1, 0], (1, 0), np.array([1, 0]))]
            == [[1, 0]] * 3
        ),
    ),
    (["*overwrite a NatVecRef*"], each(lambda u: refused(ShapeError, lambda: u.session.set_nat_vec(u.numbers, [1])))),
    (["Cuda.Buffer", "*free a buffer*", "*own a copy of a buffer*"], on_device("buffer")),
    (["Cuda.AnyBuffer"], on_device("type")),
    (["Internal.CudaBridge.TensorConv", "toAnyBuffer", "ofAnyBuffer"], on_device("round")),
    (["*Float conversions*"], on_device("forms")),
    (["*fallback that fails loudly at upload*"], on_device("wire")),
    (["*synchronize a parameter to the host*"], on_device("stale")),
    (
        ["*overwrite the host value, forget the mirror*"],
        lambda: (
            [
                (p := Param(AT, dtype="float64")).mirror(ops := NumpyOps(F64)),
                p.set([7.0, 8.0]),
                ops.get(p.mirror(ops)).tolist(),
            ][2]
            == [7, 8]
        ),
    ),
    (
        ["CudaGradMap"],
        lambda: (
            isinstance((u := Used(dense=False)).gradients, Gradients)
            and set(u.gradients) == {u.w, u.x}
            and refused(opstage.ProgramError, lambda: u.gradients[u.product], "dense=True")
        ),
    ),
    (
        ["releaseCudaTapeNonParamValues"],
        lambda: [
            (t := _run(NumpyOps(F64))[2]).close("over"),
            refused(opstage.ProgramError, lambda: t.sum(t.leaf(AT)), "over"),
        ][1],
    ),
    (
        ["*release tape values after a step*"],
        each(
            lambda u: (
                old := u.w.version,
                u.session.sgd_step_all(0.1),
                u.w.version == old + 1 and u.frozen.version == 0,
            )[2]
        ),
    ),
    (["*check a buffer's element count*"], on_device("exact", "count")),
    (["*return pages to the allocator*"], lambda: Session().trim() is trainer().trim() is None),
    (["SessionIR", "SessionIRState"], lambda: type(Session(BACKENDS[1])._base) is Deferred),
    (
        ["*Result to IO*"],
        lambda: issubclass(ShapeError, opstage.OpstageError) and issubclass(opstage.DeviceError, opstage.OpstageError),
    ),
    (["*leaves come before ops*", "*differentiable leaf*"], each(leaves_come_first)),
    (
        ["*typed index of a raw id*"],
        each(
            lambda u: refused(
                opstage.ProgramError, lambda: Session(u.session.options).get_value(u.y), "another session"
            )
        ),
    ),
    (["GraphData.eval"], each(lambda u: close(u.session.get_value(u.y), 73.0) and close(u.w.value, [1, 2]))),
    (["*JVP of a recorded value, one leaf*"], each(lambda u: close(u.session.jvp_leaf(u.y, u.x, [1.0, 0.0]), 6.0))),
    (
        ["*JVP of a recorded value, all leaves*"],
        each(lambda u: close(u.session.jvp_all(u.y, {u.x: [1.0, 0.0], u.used: [0.0, 1.0]}), 6.0 + 64.0)),
    ),
]


@pytest.mark.parametrize(("name", "claim"), [(name, claim) for names, claim in CLAIMS for name in names])
def test_a_row_says_what_happens(name: str, claim: Claim) -> None:
    assert claim()
