"""What docs/reference.md says of trainers and modules, row by row; and that every row of it has a claim."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import opstage
from opstage import Options, Param, ScalarModule, ScalarModuleDef, ShapeError, Spec, UsageError, init, optim
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.ops.dims import prod
from opstage.ops.splitmix import uniform_bits
from opstage.ops.trees import map_leaves
from opstage.optim import Optimizer
from opstage.training.parameters import cast, get_values, make_params, set_values
from opstage.training.trainer import OptimizerState
from opstage.transforms.derivatives import run_on_tape
from opstage.transforms.interpreter import BaseInterpreter, Interpreter
from tests.docs.reference_claims import (
    AT,
    F64,
    GRADS,
    LOSS,
    B,
    Claim,
    W,
    X,
    Y,
    close,
    frozen_and_fast,
    loss,
    module,
    old_state_stays,
    on_device,
    on_tape,
    option,
    pair,
    params,
    refused,
    same_bits,
    trained,
    trainer,
    values,
)
from tests.docs.test_reference_ops import ROWS as OPS_ROWS
from tests.docs.test_reference_options import CLAIMS as OF_OPTIONS
from tests.docs.test_reference_sessions import CLAIMS as OF_SESSIONS
from tests.optim.updates import updated
from tests.structure.test_reference_table import NAMES

CLAIMS: list[tuple[list[str], Claim]] = [
    # trainer
    (
        ["*monad of the eager Ops instance*"],
        lambda: issubclass(NumpyOps, Interpreter) and issubclass(NumpyOps, BaseInterpreter),
    ),
    (
        ["ParamList", "*fresh list from tensors*"],
        lambda: (
            [
                (given := values(), tree := make_params(given, options=F64), given["w"].fill(9)),
                tree["w"].name,
                close(tree["w"].value, W),
            ][1]
            == "w"
        ),
    ),
    (
        ["*fresh list with requiresGrad flags*"],
        lambda: (
            [p.requires_grad for p in params(requires_grad=[True, False]).values()] == [True, False]
            and refused(UsageError, lambda: params(requires_grad=[True]), "without one is b")
        ),
    ),
    (
        ["*read the values*", "*read the values, synchronizing mirrors*"],
        lambda: get_values(params())["w"].flags.writeable,
    ),
    (
        ["*overwrite the values*"],
        lambda: [
            tree := params(),
            refused(ShapeError, lambda: set_values(tree, {"w": W + 1, "b": W})),
            close(get_values(tree), values()),
        ][2],
    ),
    (["ParamList.sgdStep"], frozen_and_fast),
    (["ParamList.sgdStepFast"], same_bits),
    (
        ["ScalarTrainer", "ScalarTrainer.params"],
        lambda: type(trainer()) is opstage.ScalarTrainer and type(trainer().params["w"]) is Param,
    ),
    (["ScalarTrainer.forward"], lambda: close(trainer().forward(X, Y), LOSS)),
    (
        ["ScalarTrainer.backward"],
        lambda: (
            close(trainer().backward(X, Y), GRADS)
            and trainer(requires_grad={"w": True, "b": False}).backward(X, Y)["b"] is None
        ),
    ),
    (
        ["ScalarTrainer.step"],
        lambda: close((t := trainer()).step(0.5, X, Y), LOSS) and close(t.get_params()["w"], W - 0.5 * GRADS["w"]),
    ),
    (["ScalarTrainer.adamStep?"], trained("adam_step", 0.1, 0.9, 0.999, 1e-8)),
    (["ScalarTrainer.adamWStep?"], trained("adamw_step", 0.1, 0.9, 0.999, 1e-8, 0.0)),
    (["ScalarTrainer.getParams"], lambda: close(trainer().get_params(), values())),
    (["*gradients of a list of refs*"], lambda: close(trainer().loss_and_backward(X, Y), (LOSS, GRADS))),
    (["*record all parameters*", "*record all inputs*"], lambda: callable(run_on_tape) and on_tape()),
    (
        ["scalarTrainer"],
        lambda: refused(
            ShapeError,
            lambda: opstage.scalar_trainer(loss, values(), Spec("N 3"), Spec("N 2")).forward(X, Y[:4]),
            "N is 5",
        ),
    ),
    # module
    (
        ["castTensor", "castTList"],
        lambda: (
            [x.dtype.name for x in cast([AT, np.array([1]), np.array([True])], "float32")]
            == ["float32", "int64", "bool"]
            and map_leaves(lambda x: x + 1, [1, 2]) == [2, 3]
        ),
    ),
    (["FloatInit"], lambda: isinstance(init.uniform(0, 1), init.Initialiser) and not hasattr(init.zeros, "dtype")),
    (
        ["FloatInit.zeros", "FloatInit.ones"],
        lambda: init.zeros.materialise((2,)).tolist() == [0, 0] and init.ones.materialise((2,)).tolist() == [1, 1],
    ),
    (
        ["FloatInit.uniform", "*unit sample*"],
        lambda: close(
            init.uniform(2, 4, seed=1).materialise((9,), "float64"),
            2 + 2 * uniform_bits(init.uniform(2, 4, seed=1).key, 9).astype(float),
        ),
    ),
    (
        ["FloatInit.xavierUniform", "*Xavier by shape*", "*Xavier for a matrix*"],
        lambda: np.array_equal(
            init.xavier_uniform(seed=1).materialise((3, 4)), init.xavier_uniform(4, 3, seed=1).materialise((3, 4))
        ),
    ),
    (
        ["FloatInit.kaimingUniform", "*Kaiming by shape*", "*Kaiming for a matrix*"],
        lambda: np.array_equal(
            init.kaiming_uniform(seed=1).materialise((3, 4)), init.kaiming_uniform(4, seed=1).materialise((3, 4))
        ),
    ),
    (["FloatInit.flat", "tensorND!"], lambda: init.flat([1, 2, 3, 4]).materialise((2, 2)).tolist() == [[1, 2], [3, 4]]),
    (
        ["RuntimeInit.Plan"],
        lambda: refused(
            UsageError, lambda: init.Plan({"w": init.flat([1.0]), "b": init.ones}).materialise(values()), "parameter w"
        ),
    ),
    (["*plan to list*"], lambda: init.Plan(given := [init.zeros, init.ones]).initialisers == given),
    (
        ["*plan from list*"],
        lambda: (
            close(init.Plan([init.ones, init.zeros]).materialise(values()), {"w": W * 0 + 1, "b": B * 0})
            and refused(UsageError, lambda: init.Plan([init.ones]).materialise(values()), "parameter b")
        ),
    ),
    (["*product of dimensions*"], lambda: prod((2, 3, 4)) == 24),
    (["*fans of a shape*"], lambda: init.fans((3, 4)) == (4, 3) and init.fans((5, 2, 3, 3)) == (18, 45)),
    (
        ["*value at a flat index*", "*materialize as a host array*", "*materialize as a host tensor*"],
        lambda: all(
            (u := init.uniform(0, 1, seed=2)).value_at((2, 3), i, "float64")
            == u.materialise((2, 3), "float64").ravel()[i]
            for i in range(6)
        ),
    ),
    (["*element count as UInt32*"], on_device("count")),
    (["*uniform CUDA buffer*", "*CUDA buffer of an initializer*"], on_device("fill", "uniform", "stale")),
    (
        ["*host slots before initialization*"],
        lambda: init.Declaration((10**9, 10**9), init.zeros).shape == (10**9, 10**9),
    ),
    (
        ["*apply a plan*"],
        lambda: [
            m := module(),
            m.set_params(init.Plan([init.ones, init.zeros])),
            close(m.params(), {"w": W * 0 + 1, "b": B * 0}),
        ][2],
    ),
    (
        ["*apply a list of initializers*"],
        lambda: [
            tree := params(),
            set_values(tree, init.Plan([init.zeros, init.ones])),
            close(get_values(tree)["b"], [1, 1]),
            refused(UsageError, lambda: set_values(tree, init.Plan([init.ones]))),
        ][3],
    ),
    (
        ["ScalarModuleDef", "ScalarModuleDef.initParams", "ScalarModuleDef.loss"],
        lambda: (
            (d := ScalarModuleDef(values(), loss)).loss is loss
            and close(d.init, values())
            and ScalarModuleDef(init.Declaration((2,), init.ones), pair).instantiate().params().tolist() == [1, 1]
        ),
    ),
    (["ScalarModuleDef.instantiate"], lambda: module(F64).params()["w"].dtype == np.float64),
    (
        ["ScalarModuleDef.instantiateWith"],
        lambda: close(ScalarModuleDef(values(), loss).instantiate_with(lambda a: 2 * a, F64).params()["w"], 2 * W),
    ),
    (
        ["ScalarModuleDef.instantiateFloatWithRuntimePlan"],
        lambda: close(
            ScalarModuleDef(values(), loss)
            .instantiate_with_plan(F64, init.Plan({"b": init.ones, "w": init.zeros}))
            .params()["b"],
            [1, 1],
        ),
    ),
    (
        ["ScalarModuleDef.instantiateFloatWithRuntimeInit"],
        lambda: close(
            ScalarModuleDef(values(), loss).instantiate_with_init(F64, [init.zeros, init.ones]).params()["b"], [1, 1]
        ),
    ),
    (
        ["ScalarModule", "ScalarModule.create", "ScalarModule.forward"],
        lambda: close(ScalarModule.create(loss, values(), F64).forward(X, Y), LOSS),
    ),
    (["ScalarModule.backward"], lambda: close(module().backward(X, Y), GRADS)),
    (
        ["ScalarModule.step"],
        lambda: close((m := module()).step(0.5, X, Y), LOSS) and close(m.params()["b"], B - 0.5 * GRADS["b"]),
    ),
    (["ScalarModule.initOptim", "Optimizer.State"], lambda: type(module().init_optim(optim.adam())) is OptimizerState),
    (["ScalarModule.stepWith"], old_state_stays),
    (
        ["ScalarModule.params", "ScalarModule.setParams"],
        lambda: [m := module(), m.set_params({"w": W + 1, "b": B}), close(m.params()["w"], W + 1)][2],
    ),
    (
        ["ScalarModule.trainSGD"],
        lambda: [
            m := module(),
            m.train_sgd(0.5, 1, [(X, Y)], log_every=0),
            close(m.params()["b"], B - 0.5 * GRADS["b"]),
        ][2],
    ),
    (
        ["ScalarModule.trainWith"],
        lambda: (m := module()).train_with(a := optim.adam(), m.init_optim(a), 3, [(X, Y)], log_every=0).t == 3,
    ),
    (
        ["ScalarModule.meanLoss"],
        lambda: (
            type(
                ScalarModule.create(lambda ops, w, x: ops.sum(w * x), np.ones(1), Options(dtype="exact")).mean_loss(
                    [np.ones(1)] * 3
                )
            )
            is Fraction
        ),
    ),
    (
        ["Optim.Optimizer", "Optimizer.step"],
        lambda: (
            isinstance(optim.sgd(lr=0.5), Optimizer)
            and close(
                opstage.run(
                    lambda ops, p, g, lr: optim.sgd().update(ops, p, g, (), {"lr": lr})[0],
                    AT,
                    np.ones(2),
                    0.5,
                    options=F64,
                ),
                AT - 0.5,
            )
        ),
    ),
    (
        ["Optim.AdamW.update"],
        lambda: close(
            opstage.run(
                lambda ops, *refs: updated(optim.adamw(eps=0.0, weight_decay=0.5))(ops, *refs)[0],
                *(AT, np.ones(2), np.zeros(2), np.zeros(2), 0.1, 1 - 0.9, 1 - 0.999),
                options=F64,
            ),
            AT * (1 - 0.05) - 0.1,  # both moments are 1 without their bias
        ),
    ),
    (
        ["subScaleMaterialize"],
        lambda: close(opstage.run(updated(optim.sgd()), AT, np.ones(2), 0.5, options=F64)[0], AT - 0.5),
    ),
    (["NN.API.DType"], option("dtype", "float32", "float64", "exact")),
]


@pytest.mark.parametrize(("name", "claim"), [(name, claim) for names, claim in CLAIMS for name in names])
def test_a_row_says_what_happens(name: str, claim: Claim) -> None:
    assert claim()


def test_every_row_has_one_claim() -> None:
    named = [name for names, _ in [*OF_OPTIONS, *OF_SESSIONS, *CLAIMS] for name in names]
    assert sorted(named) == sorted(name for row in NAMES if (name := row[0].replace("`", "")) not in OPS_ROWS)
