"""The interpreters: each gives programs a meaning."""
