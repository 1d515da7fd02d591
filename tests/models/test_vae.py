"""The variational autoencoder: its bound against its formula, and that it beats every linear model of its size."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import opstage
from opstage.models import vae

from .by_recipe import trained
from .common import FLOAT64, batch_of, built

CONFIG = vae.Config(inputs=(1, 8, 8), hidden=(12, 10), latent=3)


def parameters() -> Any:
    return built(vae.init(CONFIG), seed=2)


def run(program: Any, *args: Any) -> Any:
    return opstage.run(lambda ops, *refs: program(ops, *refs, config=CONFIG), *args, options=FLOAT64)


def rows(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float64)


def principal_components(data: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean, variances in falling order, and the first `count` directions (pixels, count)."""
    variances, directions = np.linalg.eigh(np.cov(data.T, bias=True))
    return data.mean(axis=0), variances[::-1], directions[:, ::-1][:, :count]


def linear_likelihood(training: np.ndarray, held_out: np.ndarray, latent: int) -> float:
    """Mean -log p of the held-out rows, in nats, by probabilistic PCA at its maximum likelihood on the training rows:
    N(mean, W·Wᵀ + s²·I), s² the mean of the variances left out (Tipping, Bishop 1999, equations 7 and 8)."""
    mean, variances, directions = principal_components(training, latent)
    noise = variances[latent:].mean()
    covariance = directions * (variances[:latent] - noise) @ directions.T + noise * np.eye(len(mean))
    centred = held_out - mean
    distance = np.einsum("ni,in->n", centred, np.linalg.solve(covariance, centred.T)).mean()
    return float(0.5 * (len(mean) * math.log(2 * math.pi) + np.linalg.slogdet(covariance)[1] + distance))


def linear_error(training: np.ndarray, held_out: np.ndarray, latent: int) -> float:
    """The squared error of a pixel when PCA, the best linear code of `latent` numbers, reconstructs held-out rows."""
    mean, _, directions = principal_components(training, latent)
    centred = held_out - mean
    return float(np.mean((centred - centred @ directions @ directions.T) ** 2))


def test_distortion_is_the_density_of_a_gaussian() -> None:
    params, (x,) = parameters(), batch_of("vae", 4)
    params["noise"][...] = -1.3
    params["log_variance"]["weight"][...] = 0
    params["log_variance"]["bias"][...] = -80.0  # so that z is the mean of q
    mean, _ = run(lambda ops, p, x, config: vae.encode(ops, p, x), params, x)
    decoded = run(vae.decode, params, mean)
    expected = -norm.logpdf(x, decoded, math.exp(-1.3 / 2)).sum() / 4
    assert float(run(vae.terms, params, x)[0]) == pytest.approx(expected, rel=1e-10)
    assert float(run(vae.terms, params, x)[2]) == pytest.approx(np.mean((x - decoded) ** 2), rel=1e-10)


def test_divergence_is_the_integral_that_defines_it() -> None:
    params, (x,) = parameters(), batch_of("vae", 2)
    mean, log_variance = run(lambda ops, p, x, config: vae.encode(ops, p, x), params, x)

    def divergence(m: float, s: float) -> float:
        def integrand(z: float) -> float:
            return float(norm.pdf(z, m, s) * (norm.logpdf(z, m, s) - norm.logpdf(z)))

        return float(quad(integrand, m - 12 * s, m + 12 * s, epsabs=1e-12)[0])

    each = [divergence(m, s) for m, s in zip(mean.ravel(), np.exp(log_variance / 2).ravel())]
    assert float(run(vae.terms, params, x)[1]) == pytest.approx(sum(each) / 2, rel=1e-8)


def test_metrics_are_sums_of_the_loss() -> None:
    made, params, (x,) = vae.make(CONFIG), parameters(), batch_of("vae", 5)
    loss = float(opstage.run(made.loss, params, x, options=FLOAT64))
    sums = opstage.run(made.metrics, params, x, options=FLOAT64)
    assert float(sums["loss"]) == pytest.approx(5 * loss, rel=1e-10)
    assert float(sums["divergence"]) > 0


def test_every_step_draws_another_code() -> None:
    made, (x,) = vae.make(CONFIG), batch_of("vae", 4)
    trainer = opstage.scalar_trainer(made.loss, parameters(), options=FLOAT64)
    first = float(trainer.step(0.0, x))
    assert abs(float(trainer.step(0.0, x)) - first) > 1e-6


def test_a_short_run_improves_the_bound() -> None:
    short = trained("vae", epochs=18)[1].held_out
    training, held_out = (rows(part["x"]) for part in vae.RECIPE.data(0))
    assert short["error"] < held_out.var(axis=0).mean()
    assert short["loss"] < linear_likelihood(training, held_out, 0), "one Gaussian for all should be worse"


@pytest.mark.slow
def test_the_recipe_is_clearly_better_than_the_best_linear_model_of_its_size() -> None:
    result = trained("vae")[1].held_out
    training, held_out = (rows(part["x"]) for part in vae.RECIPE.data(0))
    latent = vae.Config().latent
    assert result["loss"] <= vae.RECIPE.goal
    # The bound is never above the likelihood itself, and probabilistic PCA's is exact.
    assert result["loss"] < linear_likelihood(training, held_out, latent) - 5
    assert result["error"] < 0.8 * linear_error(training, held_out, latent)
