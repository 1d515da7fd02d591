"""Wrappers around interpreters, and ops that hold programs: derivatives, loops, branches, custom ops."""
