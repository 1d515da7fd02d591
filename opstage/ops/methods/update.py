"""One optimizer step of one parameter; learning rate and bias corrections are refs, so a schedule never recompiles."""

from __future__ import annotations

from fractions import Fraction
from typing import final

from ..calls import Calls
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
from ..primitive import Primitive, R, Static


class UpdateOps(Calls[R]):
    __slots__ = ()

    @final
    def _update(self, primitive: Primitive, refs: tuple[R, ...], static: Static) -> tuple[R, ...]:
        """Bind an update; its numbers are fractions only if tensors are."""
        for number in static.values():
            if type(number) is Fraction and refs[0].dtype.kind == "f":
                static = {name: float(v) if type(v) is Fraction else v for name, v in static.items()}
        return self._call_many(primitive, refs, static)

    def sgd_update(self, p: R, g: R, lr: R, /, *, weight_decay: float = 0.0) -> R:
        """p - lr·(g + weight_decay·p). PyTorch: torch.optim.SGD.

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        return self._update(SGD_UPDATE, (p, g, lr), {"weight_decay": weight_decay})[0]

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
        """SGD with (Nesterov) momentum: new p, velocity. PyTorch: torch.optim.SGD(momentum=, nesterov=).

        g += weight_decay·p; velocity = momentum·velocity + g; p -= lr·velocity, or with `nesterov` p -= lr·(g +
        momentum·velocity).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        static = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        new, velocity = self._update(MOMENTUM_UPDATE, (p, g, velocity, lr), static)
        return new, velocity

    def adagrad_update(self, p: R, g: R, total: R, lr: R, /, *, eps: float, weight_decay: float = 0.0) -> tuple[R, R]:
        """Adagrad: new p, sum of squares. PyTorch: torch.optim.Adagrad.

        g += weight_decay·p; total += g²; p -= lr·g/(√total + eps) (Duchi et al. 2011).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        new, total = self._update(ADAGRAD_UPDATE, (p, g, total, lr), {"eps": eps, "weight_decay": weight_decay})
        return new, total

    def rmsprop_update(
        self, p: R, g: R, square: R, lr: R, /, *, alpha: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R]:
        """RMSprop: new p, mean square. PyTorch: torch.optim.RMSprop.

        g += weight_decay·p; square = alpha·square + (1 - alpha)·g²; p -= lr·g/(√square + eps) (Tieleman & Hinton 2012).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        static = {"alpha": alpha, "eps": eps, "weight_decay": weight_decay}
        new, square = self._update(RMSPROP_UPDATE, (p, g, square, lr), static)
        return new, square

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
        """Adam: new p, m, v; c1 = 1 - beta1^t, c2 = 1 - beta2^t. PyTorch: torch.optim.Adam.

        g += weight_decay·p; m = beta1·m + (1 - beta1)·g; v = beta2·v + (1 - beta2)·g²; p -= lr·(m/c1)/(√(v/c2) + eps)
        (Kingma & Ba 2015).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr, c1, c2 of another shape.
        """
        static = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        new, m, v = self._update(ADAM_UPDATE, (p, g, m, v, lr, c1, c2), static)
        return new, m, v

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
        """AdamW (decoupled decay): new p, m, v. PyTorch: torch.optim.AdamW.

        p *= 1 - lr·weight_decay, then adam_update without decay (Loshchilov & Hutter 2019).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr, c1, c2 of another shape.
        """
        static = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
        new, m, v = self._update(ADAMW_UPDATE, (p, g, m, v, lr, c1, c2), static)
        return new, m, v

    def adadelta_update(
        self, p: R, g: R, square: R, delta: R, lr: R, /, *, rho: float, eps: float, weight_decay: float = 0.0
    ) -> tuple[R, R, R]:
        """Adadelta: new p, mean square, mean squared step. PyTorch: torch.optim.Adadelta.

        g += weight_decay·p; square = rho·square + (1 - rho)·g²; step = √(delta + eps)/√(square + eps)·g; delta =
        rho·delta + (1 - rho)·step²; p -= lr·step (Zeiler 2012).

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: shapes differ; an invalid argument; lr of another shape.
        """
        static = {"rho": rho, "eps": eps, "weight_decay": weight_decay}
        new, square, delta = self._update(ADADELTA_UPDATE, (p, g, square, delta, lr), static)
        return new, square, delta

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
        """Muon: new p, momentum buffer; Newton-Schulz orthogonalised step. PyTorch: torch.optim.Muon.

        For a matrix p (r, c): b = momentum·b + (1 - momentum)·g; u = momentum·b + (1 - momentum)·g with `nesterov`,
        else b; u orthogonalised by `steps` Newton-Schulz iterations from u/max(‖u‖, eps); p = (1 - lr·weight_decay)·p -
        lr·√max(1, r/c)·u (Jordan et al. 2024). PyTorch iterates in bfloat16, this op in p's dtype.

        Raises:
            DtypeError: p not a float tensor; dtypes differ.
            ShapeError: p has no entries; shapes differ; an invalid argument; p, lr of another shape.
        """
        static = {
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "steps": steps,
            "eps": eps,
        }
        new, momentum_buffer = self._update(MUON_UPDATE, (p, g, momentum_buffer, lr), static)
        return new, momentum_buffer
