"""The mistakes of `tests.check.buggy` as a user of JAX or PyTorch would make them, and what those libraries say."""
