"""The time of a training step before there is one: rooflines of its kernels, by rates measured or published."""
