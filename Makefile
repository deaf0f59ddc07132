# A newcomer needs two commands: `make demo` and `make test`. Both install what is missing first.
#
# TRIVIUM_PYTHON   the Python to build .venv with (default: the first of python3, python3.14 … 3.11 that is
#                  3.11 or newer)
# OUT              the demo's run directory
# WORKERS          tests at a time (default: one more than there are cores, as ranks of a test often wait)
# JSON             where `make faults`, `make chaos`, `make reproduce` and `make mutation` write their results as data
# SAMPLE           number of mutants that `make mutation` tries
# KILLS, CORRUPT … number of faults of each kind that `make chaos` injects; LAYOUTS and SEED are its other options
# REPORTS          folder for the report of `make test-nccl` (default: benchmarks/reports)
# PYTEST_OPTIONS   passed to every pytest below

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TESTABLE := $(VENV)/.testable
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
OUT ?= runs/demo
WORKERS ?= $(shell expr $$(nproc 2>/dev/null || echo 1) + 1)
PYTEST = $(BIN)/python -m pytest $(PYTEST_OPTIONS)
PYTHON_FOLDERS := src tests $(wildcard benchmarks)
FAST := $(filter-out $(patsubst %,tests/%_test.py,benchmarks gpu_benchmark python), $(wildcard tests/*_test.py)) \
        $(wildcard tests/plan tests/cost tests/planner tests/report) \
        $(patsubst %,tests/cli/%_test.py,documented_commands machine plan_verbs run_config)
# Models that are built or trained, and whole searches: `make test` has them, as it has the rest of the command line's.
NOT_FAST := tests/cost/activations_test.py tests/report/page_test.py \
            $(patsubst %,tests/planner/%_test.py,backtest exhaustive explain near_misses probed scale search_text)
GPU_TESTS = $(shell grep -rl 'mark\.gpu' tests --include=*_test.py)
GPU_PACKAGES := numpy pyarrow pydantic pytest pytest-timeout PyYAML safetensors scipy tiktoken tokenizers
# No signal interrupts a CUDA call that hangs, so pytest-timeout ends the process from a thread.
GPU_OPTIONS = -m gpu -o timeout_method=thread -o timeout=120 $(GPU_TESTS)

.PHONY: setup demo docs test test-broad test-all test-gpu test-nccl cluster mutation faults chaos reproduce check format clean

setup: $(TESTABLE)

$(INSTALLED): pyproject.toml constraints.txt
	@python="$(TRIVIUM_PYTHON)"; \
	for candidate in python3 python3.14 python3.13 python3.12 python3.11; do \
	  if [ -z "$$python" ] && $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	  then python=$$candidate; fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11 or newer was found; install one, or name it: make setup TRIVIUM_PYTHON=/path/to/python3"; \
	  exit 3; \
	fi; \
	if [ ! -x $(BIN)/python ]; then echo "creating $(VENV) with $$python"; $$python -m venv $(VENV); fi
	$(PIP_INSTALL) torch==2.13.0
	$(PIP_INSTALL) -c constraints.txt -e .
	@touch $@

# what only the tests need: every extra, with the libraries that are oracles and peers
$(TESTABLE): $(INSTALLED)
	$(PIP_INSTALL) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/trivium demo --out $(OUT)

# Neighbours stay together while there is enough for all: what a module makes once for its tests is made once.
test: setup
	$(PYTEST) -n $(WORKERS) --dist worksteal

test-broad: setup
	$(PYTEST) -n $(WORKERS) --dist worksteal -m "not slow and not gpu"

test-all: setup
	$(PYTEST) -m "not gpu" --timeout 1800

# A machine with an accelerator has the torch that suits it, and may have no network: where its Python finds a CUDA
# device, nothing is installed, and a package that it lacks is an error.
test-gpu:
	@python="$(or $(TRIVIUM_PYTHON),python3)"; \
	if "$$python" -c 'import torch; assert torch.cuda.is_available(), "torch finds no CUDA device"'; \
	then "$$python" benchmarks/needed.py $(GPU_PACKAGES) || exit; \
	PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" "$$python" -m pytest $(PYTEST_OPTIONS) $(GPU_OPTIONS); \
	else echo "$$python cannot run these tests, for the reason above: .venv is installed for them"; \
	$(MAKE) setup && $(PYTEST) $(GPU_OPTIONS); fi

# Several ranks that share one GPU, over NCCL; like the above with the Python that has the torch for it.
test-nccl:
	PYTHONPATH="src$${PYTHONPATH:+:$$PYTHONPATH}" "$(or $(TRIVIUM_PYTHON),python3)" benchmarks/nccl.py \
	  --json $(or $(JSON),/dev/null) --report $(or $(REPORTS),benchmarks/reports)

# A real Slurm of two nodes in network namespaces, and Ray clusters, in a quarter of an hour. Slurm needs root.
cluster: setup
	@for program in munged slurmctld slurmd sbatch nsenter ip; do \
	  if ! PATH="$$PATH:/usr/sbin" command -v $$program > /dev/null; then \
	    echo "error: $$program was not found; install Slurm, on Debian: apt-get install --no-install-recommends slurmctld slurmd slurm-client munge iproute2"; \
	    exit 3; \
	  fi; \
	done
	$(PYTEST) -m slow -rs tests/cluster

docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

mutation: setup
	PYTHONPATH=tests $(BIN)/python -m mutation.run --json $(or $(JSON),mutation.json) --sample $(or $(SAMPLE),300)

# The certificate must catch every seeded fault.
faults: setup
	PYTHONPATH=tests $(BIN)/python -m faults.run $(if $(JSON),--json $(JSON))

# A small training that is killed, damaged, starved and preempted must lose nothing.
chaos: setup
	PYTHONPATH=tests $(BIN)/python -m chaos.run \
	  $(if $(KILLS),--kills $(KILLS)) $(if $(LAYOUTS),--layouts $(LAYOUTS)) $(if $(CORRUPT),--corrupt $(CORRUPT)) \
	  $(if $(RESUME),--resume $(RESUME)) $(if $(DISKFULL),--diskfull $(DISKFULL)) \
	  $(if $(PREEMPT),--preempt $(PREEMPT)) $(if $(FREEZE),--freeze $(FREEZE)) $(if $(POISON),--poison $(POISON)) \
	  $(if $(ORPHANS),--orphans $(ORPHANS)) $(if $(HOSTS),--hosts $(HOSTS)) $(if $(SEED),--seed $(SEED)) $(if $(JSON),--json $(JSON))

# Writes docs/reproduction.md.
reproduce: setup
	$(BIN)/python benchmarks/reproduce.py $(if $(JSON),--json $(JSON))

check: setup
	$(BIN)/ruff format --check $(PYTHON_FOLDERS)
	$(BIN)/ruff check $(PYTHON_FOLDERS)
	$(BIN)/pyrefly check
	$(PYTEST) -n $(WORKERS) --dist worksteal $(FAST) $(NOT_FAST:%=--ignore=%)

format: setup
	$(BIN)/ruff format $(PYTHON_FOLDERS)
	$(BIN)/ruff check --fix $(PYTHON_FOLDERS)

clean:
	rm -rf $(VENV) dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
