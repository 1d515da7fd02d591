"""silero-vad, which hears whether somebody speaks, in synthesised vowels and noises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter

import opstage.onnx
from opstage.interop.onnx.model import Config, trainable

from .wheels import Runtime, exported, file_in, fine_tuned, require_close, values

RATE = 16_000
_VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "u": (300, 870, 2240), "e": (530, 1840, 2480)}
"""Formants in Hz. Source: Peterson and Barney 1952."""


def speech(seconds: float, seed: int = 0) -> Any:
    """Syllables of vowels: pulses of a voice at 110 to 150 Hz through the resonances of a mouth."""
    rng = np.random.default_rng(seed)
    parts, total = [], 0
    while total < seconds * RATE:
        length = int(rng.uniform(0.12, 0.3) * RATE)
        pitch = rng.uniform(110, 150) * (1 + 0.1 * np.linspace(0, -1, length))
        pulses = np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0.0) + 0.02 * rng.standard_normal(length)
        for formant in _VOWELS[rng.choice(list(_VOWELS))]:
            radius = np.exp(-np.pi * (60 + formant / 20) / RATE)
            pulses = lfilter([1 - radius], [1, -2 * radius * np.cos(2 * np.pi * formant / RATE), radius**2], pulses)
        parts.append(pulses / np.max(np.abs(pulses)) * 0.5 * np.hanning(length) ** 0.3)
        total += length
    return np.concatenate(parts)[: int(seconds * RATE)].astype(np.float32)


def noise(seconds: float, seed: int = 0) -> Any:
    """Quiet white noise."""
    return (0.01 * np.random.default_rng(seed).standard_normal(int(seconds * RATE))).astype(np.float32)


def windows(sound: Any, size: int = 512, context: int = 64) -> Any:
    """(N, context + size): windows, each with the end of the one before it, as silero-vad takes them."""
    count = len(sound) // size
    padded = np.concatenate([np.zeros(context, np.float32), sound[: count * size]])
    return np.stack([padded[i * size : i * size + context + size] for i in range(count)])


# silero-vad, which hears whether somebody speaks: a spectrogram by convolution, four convolutions, an LSTM ------------

FILES = {
    "silero_vad.onnx": ("input_1", "input_0 == state_2_1"),
    "silero_vad_16k_op15.onnx": ("sequence",),
    "silero_vad_op18_ifless.onnx": ("sequence",),
    "silero_vad_half.onnx": ("sequence",),
    "silero_vad_openvino_16k.onnx": (),
}
"""Each with its name for the number of samples, and what it needs besides."""

LENGTHS = range(192, 704)
"""Of which its spectrogram, after the strides of its convolutions, is one step of the LSTM: all that it takes."""


def loaded(name: str, lengths: range = LENGTHS) -> Any:
    path = file_in("silero-vad", f"data/{name}")
    given = {each.name for each in Runtime(path).session.get_inputs()}
    fixed = {"sr": np.array(16_000)} if "sr" in given else {}
    samples, *more = FILES[name] or ("",)
    where = [f"{samples} >= {lengths.start}", f"{samples} < {lengths.stop}", *more] if samples else []
    return path, fixed, opstage.onnx.load(path, fixed=fixed, where=where)


def heard(run: Any, sound: Any) -> Any:
    """The network's probabilities of speech, window by window, with its state from one to the next."""
    state, found = np.zeros((2, 1, 128), np.float32), []
    for window in windows(sound):
        probability, state = run(window[None], state)
        found.append(probability.item())
    return np.array(found)


@pytest.mark.parametrize("name", FILES)
def test_it_is_the_runtime_s_network_at_every_size(name: str) -> None:
    path, fixed, model = loaded(name)
    runtime, report = Runtime(path), model.check()
    assert report.ok, str(report)
    rng = np.random.default_rng(0)
    for rows, samples in ((1, 576), (5, 576), (2, 192), (3, 703)) if FILES[name] else ((1, 576),):
        x = speech(1)[: rows * samples].reshape(rows, samples)
        state = rng.normal(0, 0.3, (2, rows, 128)).astype(np.float32)
        expected = runtime(input=x, state=state, **fixed)
        for backend in ("eager", "compiled"):
            require_close(values(model, model.params, x, state, backend=backend), expected)


def test_a_check_refuses_what_the_runtime_fails_at() -> None:
    path, fixed, model = loaded("silero_vad_16k_op15.onnx", range(704, 10**6))
    assert "in=128 differs from (sequence + 320)//512" in str(model.check())
    with pytest.raises(Exception, match="Input X must have 3 dimensions only"):
        Runtime(path)(input=speech(1)[None, :1088], state=np.zeros((2, 1, 128), np.float32), **fixed)


def test_it_hears_what_the_runtime_hears() -> None:
    """Voices in noise, window by window; the state carries what differs, and it stays as small."""
    path, fixed, model = loaded("silero_vad_16k_op15.onnx")
    runtime = Runtime(path)
    sound = np.concatenate([noise(1), speech(2), noise(1)])
    theirs = heard(lambda x, state: runtime(input=x, state=state, **fixed), sound)
    compiled = opstage.Options(backend="compiled")

    def run(x: Any, state: Any) -> Any:
        return opstage.run(model, model.params, x, state, options=compiled).values()

    np.testing.assert_allclose(heard(run, sound), theirs, rtol=1e-4, atol=1e-5)
    assert theirs[40:85].max() > 0.5 > theirs[:25].max()


@pytest.mark.parametrize("name", FILES)
def test_it_is_trained_and_goes_back(name: str) -> None:
    path, fixed, model = loaded(name)
    x = np.concatenate([windows(speech(0.6, 1)), windows(noise(0.6, 2))])[:: 1 if FILES[name] else 40]
    y = (np.arange(len(x))[:, None] < len(x) // 2).astype(np.float32)
    y = y if FILES[name] else np.ones_like(y)
    tuned = trainable(model, Config(loss="mse", output="output"))
    state = np.zeros((2, len(x), 128), np.float32)
    params, losses = fine_tuned(tuned.loss, model.params, tuned.batch, (x, state, y), rate=1e-3, steps=8)
    assert losses[-1] < 0.5 * losses[0], losses
    assert any(not np.array_equal(params[each], model.params[each]) for each in params)
    # what was learned goes back to ONNX, and what was not is the file's
    back = exported(model, params)
    names = [each.name for each in back.session.get_inputs()]
    for rows in (1, 3) if FILES[name] else (1,):
        given = (x[:rows], state[:, :rows])
        require_close(back(**dict(zip(names, given))), values(model, params, *given, backend="eager"))
    same = exported(model, model.params)
    require_close(same(**dict(zip(names, (x, state)))), Runtime(path)(input=x, state=state, **fixed))
