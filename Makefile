# `make demo` and `make test` do all the set-up themselves: Python 3.11 or newer, pip and make are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
# The Python of a GPU machine, with torch and Triton for its driver.
PYTHON_GPU ?= python3
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
PEERS_PIP := $(PEERS)/bin/python -m pip --disable-pip-version-check install --quiet --constraint tests/peers/constraints.txt

.PHONY: setup demo test test-generic test-slow test-flower test-gpu test-peers paper theory speed speed-gpu fuzz check docs notebooks release clean

setup: $(VENV)/dev

demo: $(VENV)/demo
	$(BIN)/bartizan demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile

# The numerical tests as on another CPU (no AVX, no FMA, no F16C; another BLAS) and with one thread.
test-generic: $(VENV)/dev
	NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES="" NUMBA_CACHE_DIR=$(CURDIR)/build/numba-generic OPENBLAS_CORETYPE=Prescott \
		NUMBA_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/kernels/test_kernels.py \
		tests/kernels/test_order_statistics.py tests/kernels/test_weigh.py tests/measure/test_geometry.py tests/rules/test_definitions.py

test-slow: $(VENV)/slow
	$(BIN)/python -m pytest -m slow

# Flower's lowest and highest version that pyproject.toml admits, each in an environment of its own.
FLOWERS := 1.39.0 1.42.0
test-flower: $(FLOWERS:%=.venv-flower-%/ready)
	for version in $(FLOWERS); do .venv-flower-$$version/bin/python -m pytest -m "not slow" tests/flower || exit 1; done

# Most of its time is compiling, one kernel a process at a time.
GPU_PROCESSES ?= 8
test-gpu:
	PYTHONPATH=src $(PYTHON_GPU) -m pytest -p no:benchmark -n $(GPU_PROCESSES) --dist worksteal tests/kernels/test_gpu.py \
		tests/updates/test_ongpu.py tests/sources/test_sharded_gpu.py tests/attacks/test_attacks.py tests/lab/test_clients.py tests/lab/test_images.py

test-peers: $(PEERS)/ready
	$(PEERS)/bin/python -m pytest -o addopts="" --confcutdir=tests/peers tests/peers

# The paper's cells: those of a table, or of all; a stopped run continues. Then our numbers beside the paper's.
TABLE ?= cifar10-0.6
DATA ?= data
paper: $(VENV)/dev
	$(BIN)/python -m studies paper run $(TABLE) --data $(DATA)
	$(BIN)/python -m studies paper compare

# What the theorems promise, measured: a quarter of an hour.
theory: $(VENV)/dev
	$(BIN)/python -m studies theory

# What a call costs beside other libraries: three sizes, each measured in one run; then the tables in README and docs.
# About 20 minutes on two cores with nothing else to do. Some rules of ByzPy and Flower take minutes a call at the largest.
RESULTS ?= studies/results/speed-cpu.json
SPEED = FLWR_TELEMETRY_ENABLED=0 $(PEERS)/bin/python -m studies speed --json $(RESULTS) --add
SPEED_RULES := mean,krum,bulyan,geometric-median,mca,median
SPEED_PEERS := byzfl,byzfl-numpy,krum,torch
speed: $(PEERS)/ready $(VENV)/dev
	rm -f $(RESULTS)
	$(SPEED) --rules $(SPEED_RULES),trimmed-mean,meamed --peers $(SPEED_PEERS),byzpy,flower --clients 10 --dim 10k --repeats 25
	$(SPEED) --rules $(SPEED_RULES),trimmed-mean,meamed --peers $(SPEED_PEERS),byzpy,flower,pair-loop --clients 50 --byzantine 10 \
		--dim 1M --sketches exact,rotated,achlioptas --repeats 9 --limit 10
	$(SPEED) --rules $(SPEED_RULES) --peers $(SPEED_PEERS),pair-loop --clients 50 --byzantine 10 --dim 11689512 --repeats 9 --limit 12
	$(BIN)/python -m studies pages

# The same on a GPU, whose Python needs ByzFL too; from the smallest updates to the largest, in one run.
GPU_RESULTS ?= studies/results/speed-h200.json
GPU_SPEED = PYTHONPATH=src:$(PYTHONPATH) $(PYTHON_GPU) -m studies speed --device cuda --json $(GPU_RESULTS) --add
speed-gpu:
	rm -f $(GPU_RESULTS)
	$(GPU_SPEED) --rules $(SPEED_RULES),trimmed-mean,meamed --peers byzfl,torch --clients 10 --byzantine 1 --dim 100k --repeats 25
	$(GPU_SPEED) --rules $(SPEED_RULES),trimmed-mean,meamed --peers byzfl,torch --clients 50 --byzantine 10 --dim 1M --repeats 15
	$(GPU_SPEED) --rules $(SPEED_RULES),trimmed-mean,meamed --peers byzfl,torch,pair-loop --clients 50 --byzantine 10 \
		--dim 11689512 --sketches exact,rotated,achlioptas --repeats 9 --limit 3
	$(GPU_SPEED) --rules mean,krum,bulyan,geometric-median,mca --peers byzfl,torch --clients 50 --byzantine 10 --dim 138357544 \
		--repeats 9 --limit 2
	$(GPU_SPEED) --rules krum,bulyan,geometric-median,mca --clients 1000 --byzantine 200 --dim 11689512 --sketches rotated \
		--repeats 9 --limit 2

# Hostile inputs; CI runs a short campaign of its own.
MINUTES ?= 12
SEED ?= 1
PROCESSES ?= 2
fuzz: $(VENV)/fuzz
	$(BIN)/python -m fuzz --minutes $(MINUTES) --seed $(SEED) --processes $(PROCESSES) --out build/hostile.json

# The documentation site, in build/site: open index.html there.
docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html, or serve it: python3 -m http.server --directory build/site"

# Notebooks of the torch tutorial and of reading a run with pandas, in build/notebooks.
notebooks: $(VENV)/notebooks
	$(BIN)/python docs/notebooks.py build/notebooks

# sdist and wheel, in build/release/dist; the wheel is installed bare and with [lab] in empty environments, where the README runs.
release: $(VENV)/release
	$(BIN)/python tools/release.py --pythons $(PYTHONS)

check: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/demo: pyproject.toml constraints.txt | $(VENV)
	@echo "Installing what the demo needs, torch included (a minute or two the first time) ..."
	$(PIP) --editable ".[lab]"
	@echo "Compiling the kernels, once ..."
	@$(BIN)/bartizan demo aggregation --dim 9k > /dev/null
	@touch $@

$(VENV)/dev: pyproject.toml constraints.txt | $(VENV)
	@echo "Installing what the tests need, torch included (a minute or two the first time) ..."
	$(PIP) --editable ".[dev]"
	@touch $@

$(VENV)/slow: $(VENV)/dev
	@echo "Installing Flower's simulation engine, Ray, an S3 server, peft and JAX ..."
	$(PIP) --editable ".[dev,slow]"
	@touch $@

$(VENV)/docs: pyproject.toml constraints.txt | $(VENV)
	@echo "Installing what builds the documentation ..."
	$(PIP) --editable ".[docs]"
	@touch $@

$(VENV)/notebooks: $(VENV)/dev
	@echo "Installing what makes and runs notebooks ..."
	$(PIP) --editable ".[dev,notebook]"
	@touch $@

$(VENV)/release: pyproject.toml constraints.txt | $(VENV)
	@echo "Installing what builds packages ..."
	$(PIP) build setuptools
	@touch $@

$(VENV)/fuzz: $(VENV)/dev
	@echo "Installing atheris, which looks for cases by coverage; where it can't be had, Hypothesis alone draws them ..."
	-$(PIP) --editable ".[dev,fuzz]"
	@touch $@

$(VENV):
	$(PYTHON) -m venv $(VENV)

# Without their dependencies: ByzFL, ByzPy and krum ask for torchvision, and some for an older torch or a newer Python, which
# their rules do not need.
$(PEERS)/ready: pyproject.toml tests/peers/constraints.txt
	@echo "Installing ByzFL, ByzPy, krum and Flower beside bartizan (two minutes or three the first time) ..."
	$(PYTHON) -m venv $(PEERS)
	$(PEERS_PIP) torch numpy numba scipy cloudpickle pytest flwr rich matplotlib
	$(PEERS_PIP) --no-deps --ignore-requires-python byzfl byzpy krum --editable .
	@touch $@

# A package index may lack what another Flower asks for; the dependencies of the one in constraints.txt serve it as well.
.venv-flower-%/ready: pyproject.toml constraints.txt
	@echo "Installing Flower $* and what its tests need ..."
	$(PYTHON) -m venv .venv-flower-$*
	.venv-flower-$*/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
		--editable ".[flower,plot,torch]" hypothesis pytest
	.venv-flower-$*/bin/python -m pip --disable-pip-version-check install --quiet flwr==$* \
		|| .venv-flower-$*/bin/python -m pip --disable-pip-version-check install --quiet --no-deps flwr==$*
	@touch $@

clean:
	rm -rf $(VENV) .venv-peers .venv-flower-* build src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
