"""Samples of trained models in a report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opstage.runs import configure
from opstage.runs.report_samples import COUNT, TEXT_LENGTH, GeneratedText, ImageRows, samples
from opstage.runs.run_setup import Task, prepare


def task(model: str, **config: Any) -> Task:
    return prepare(configure(model, values={"model": config}, environ={}).settings)


def test_classifiers_make_nothing() -> None:
    assert samples(task("mlp", hidden=(4,))) is None


def test_a_vae_shows_images_their_reconstructions_and_new_ones() -> None:
    made = samples(task("vae", hidden=(8,), latent=2))
    assert isinstance(made, ImageRows)
    assert [(label, images.shape) for label, images in made.rows] == [
        ("held out", (COUNT, 8, 8)),
        ("through the code", (COUNT, 8, 8)),
        ("new", (COUNT, 8, 8)),
    ]
    new = made.rows[2][1]
    assert len(np.unique(new, axis=0)) == COUNT


def test_a_unet_shows_noisy_cleaned_and_clean_images() -> None:
    made = samples(task("unet", channels=(4,), groups=2))
    assert isinstance(made, ImageRows)
    noisy, cleaned, clean = (images for _, images in made.rows)
    assert noisy.shape == cleaned.shape == clean.shape == (COUNT, 8, 8)
    assert 0.2 < np.abs(noisy - clean).mean() < 0.6  # of noise with deviation 0.5 it is 0.4


def test_a_pinn_shows_its_field_beside_the_solution() -> None:
    """At t = 0, the first row, both are the initial value -sin(πx)."""
    made = samples(task("pinn", hidden=(4,)))
    assert isinstance(made, ImageRows)
    found, solution = (images[0] for _, images in made.rows)
    assert found.shape == solution.shape == (33, 129)
    expected = (1 - np.sin(np.pi * np.linspace(-1, 1, 129))) / 2
    assert found[0] == pytest.approx(expected, abs=1e-5)
    assert solution[0] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("mesh", ["", "data=2", "model=2"])
def test_a_gpt_shows_text(tmp_path: Any, mesh: str) -> None:
    file = tmp_path / "text.txt"
    file.write_text("to be or not to be\n" * 200)
    config = {"length": 16, "width": 8, "depth": 1, "heads": 2, "hidden": 8}
    values = {"model": config, "data": {"file": str(file)}, "options": {"mesh": mesh}}
    made = samples(prepare(configure("gpt", values=values, environ={}).settings))
    assert isinstance(made, GeneratedText)
    assert 0 < len(made.text) <= TEXT_LENGTH
