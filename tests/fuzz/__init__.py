"""Damaged and hostile files given to every reader: one clear error, or what an independent reader reads, never more.

limits.py      many cases in a process of their own, each with a limit of processor time and of memory
mutations.py   what is done to bytes, to text, to JSON, to the members of a zip archive
corpus.py      valid files of every kind, small, made here
onnx_messages.py, onnx_models.py  ONNX models, and what is done to their messages
readers.py     what reads them, and what is compared

`python -m tests.fuzz --cases 100000 --seed 7 [--only npz]` goes on from where the tests stop.
"""
