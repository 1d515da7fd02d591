"""Predicts the time and energy of a training step before it runs, from measured or published rates of devices."""
