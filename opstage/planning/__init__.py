"""Predicts the time of a training step by rooflines of its kernels, from measured or published rates."""
