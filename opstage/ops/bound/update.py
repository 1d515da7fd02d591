"""One optimizer step of one parameter; learning rate and bias corrections are refs: a schedule never recompiles."""

from __future__ import annotations

from typing import final

from ..catalogue.update import (
    ADADELTA_UPDATE,
    ADAGRAD_UPDATE,
    ADAM_UPDATE,
    ADAMW_UPDATE,
    MOMENTUM_UPDATE,
    MUON_UPDATE,
    RMSPROP_UPDATE,
    SGD_UPDATE,
)
from ..protocol import R
from .calls import Calls


class UpdateOps(Calls[R]):
    __slots__ = ()

    @final
    def sgd_update(self, p: R, g: R, lr: R, /, *, weight_decay: float = 0.0) -> R:
        return self._call(SGD_UPDATE, (p, g, lr), {"weight_decay": weight_decay})

    @final
    def momentum_update(
        self,
        p: R,
        g: R,
        velocity: R,
        lr: R,
        /,
        *,
        momentum: float,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> tuple[R, R]:
        static = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        new, velocity = self._call_many(MOMENTUM_UPDATE, (p, g, velocity, lr), static)
        return new, velocity

    @final
    def adagrad_update(self, p: R, g: R, total: R, lr: R, /, *, eps: float, weight_decay: float = 0.0) -> tuple[R, R]:
        new, total = self._call_many(ADAGRAD_UPDATE, (p, g, total, lr), {"eps": eps, "weight_decay": weight_decay})
        return new, total

    @final
    def rmsprop_update(
        self, p: R, g: R, square: R, lr: R, /, *, alpha: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R]:
        static = {"alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        new, square = self._call_many(RMSPROP_UPDATE, (p, g, square, lr), static)
        return new, square

    @final
    def adam_update(
        self,
        p: R,
        g: R,
        m: R,
        v: R,
        lr: R,
        c1: R,
        c2: R,
        /,
        *,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float = 0.0,
    ) -> tuple[R, R, R]:
        static = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        new, m, v = self._call_many(ADAM_UPDATE, (p, g, m, v, lr, c1, c2), static)
        return new, m, v

    @final
    def adamw_update(
        self,
        p: R,
        g: R,
        m: R,
        v: R,
        lr: R,
        c1: R,
        c2: R,
        /,
        *,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
    ) -> tuple[R, R, R]:
        static = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        new, m, v = self._call_many(ADAMW_UPDATE, (p, g, m, v, lr, c1, c2), static)
        return new, m, v

    @final
    def adadelta_update(
        self, p: R, g: R, square: R, delta: R, lr: R, /, *, rho: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R, R]:
        static = {"rho": rho, "eps": eps, "weight_decay": weight_decay}
        new, square, delta = self._call_many(ADADELTA_UPDATE, (p, g, square, delta, lr), static)
        return new, square, delta

    @final
    def muon_update(
        self,
        p: R,
        g: R,
        momentum_buffer: R,
        lr: R,
        /,
        *,
        momentum: float,
        nesterov: bool,
        weight_decay: float,
        steps: int,
        eps: float,
    ) -> tuple[R, R]:
        static = {
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "steps": steps,
            "eps": eps,
        }
        new, momentum_buffer = self._call_many(MUON_UPDATE, (p, g, momentum_buffer, lr), static)
        return new, momentum_buffer
