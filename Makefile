# `make demo` and `make test` set themselves up. Everything runs in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
LOCK := requirements-dev.lock
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Bytecode, also of rewritten assertions, is kept.
unexport PYTHONDONTWRITEBYTECODE

OPTIONS :=  # more options for pytest
PARALLEL := -n auto --dist worksteal
# For layers whose tests mostly wait. A worker that has nothing left takes half of what another has before it: by files, the
# last one would end alone.
PARALLEL_WAITING := -n 2 --dist worksteal
# For tests of which one start of processes serves a whole file.
PARALLEL_FILES := -n 2 --dist loadfile

.PHONY: lock demo docs test test-all test-slow test-process test-torch test-cuda-build test-gpu test-cluster test-rest check bench bed clean
.DEFAULT_GOAL := test

$(READY): pyproject.toml constraints.txt $(LOCK)
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python >= 3.10 is needed: make PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --require-hashes --no-deps -r $(LOCK)
	$(PIP) -c constraints.txt torch
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

# The lock file anew, after a change of pyproject.toml or constraints.txt; needs uv. torch is left out, with what its CUDA
# build brings: each machine's index has another build of it.
CUDA_BUILD := torch triton cuda-bindings cuda-pathfinder cuda-toolkit $(addprefix nvidia-,cublas cuda-cupti cuda-nvrtc \
	cuda-runtime cudnn-cu13 cufft cufile curand cusolver cusparse cusparselt-cu13 nccl-cu13 nvjitlink nvshmem-cu13 nvtx)
lock:
	uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-annotate --no-header --extra dev \
		-c constraints.txt $(addprefix --no-emit-package ,$(CUDA_BUILD)) -o $(LOCK) pyproject.toml

# The documents as a site, in build/site. A warning is an error; nothing is fetched from elsewhere.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# Probe, plan, launch and train on two clusters of two hosts made of network namespaces; needs Linux and iproute2, else it
# runs on local processes.
demo: $(READY)
	$(BIN)/python -m tests.testbed.demo

# The tests for after every change: no root, no network, no GPU, and no run of several processes.
test: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL) -o faulthandler_timeout=660 $(OPTIONS)

# The same tests, those of test-slow and the exhaustive ones, each at full size.
test-all: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL) --timeout=1800 --hypothesis-profile=full $(OPTIONS) \
		-m 'not cluster and not process and not torch and not cuda_build'

# The probe's parsers on recordings cut and mutated; the audit on planted faults; the solvers against brute force; the
# tests on drawn examples, with more of them. A test may take half an hour, as CI runs these by what others leave of the
# processors.
test-slow: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL) --timeout=1800 --hypothesis-profile=some $(OPTIONS) -m '(slow or hypothesis) and not exhaustive'

# Commands as processes, on processes of this machine: the sessions of README and docs, the demo, detached runs.
test-process: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL_WAITING) $(OPTIONS) -m 'process and not exhaustive'

# The training runtime on several processes against one, two files side by side: alone, one leaves a fifth of two cores idle.
test-torch: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL_FILES) $(OPTIONS) -m 'torch and not exhaustive'

# What torch's CUDA build and its NCCL show without a GPU; left out, and said so, where torch is built without CUDA.
test-cuda-build: $(READY)
	$(BIN)/python -m pytest -q $(OPTIONS) -m cuda_build

# What only GPUs show, as far as the GPUs of this machine go, and a report in gpu-report/; fails where there is none.
# OPTIONS="--device cpu" runs the same steps on processes, with tiny shapes. With `PYTHON=python3 VENV=` that interpreter
# and its torch are used: no environment is made, and no network is needed.
test-gpu: $(if $(VENV),$(READY))
	$(if $(VENV),$(BIN)/python,$(PYTHON)) -m benchmarks.on_gpus $(OPTIONS)

# Tests on network-namespace beds, three side by side, as each mostly waits; needs root, iproute2 and openssh-server. The
# tests of a file share a bed, or have one for each worker that runs some of them.
test-cluster: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL_WAITING) $(OPTIONS) -m 'cluster and not exhaustive'

# What the three layers before leave out, as another test shows most of it; needs what they need.
test-rest: $(READY)
	$(BIN)/python -m pytest -q $(PARALLEL_FILES) $(OPTIONS) -m 'exhaustive and (process or torch or cluster)'

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# One benchmark (make bench NAME=two_clusters) or all of them.
bench: $(READY)
	set -e; for file in $(or $(NAME:%=benchmarks/%.py),$(filter-out %__init__.py %figure.py %torch_rivals.py,$(wildcard benchmarks/*.py))); do \
		$(BIN)/python -m $$(echo $${file%.py} | tr / .); done

# The bed alone, until Ctrl-C: two clusters to try commands on.
bed: $(READY)
	$(BIN)/python -m tests.testbed.bed

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
