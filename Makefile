# Every target does its own set-up, in .venv. `make` alone prints this list.
SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# The interpreter for .venv; empty: the first of these that is new enough.
PYTHON ?=
PYTHONS := python3 python3.13 python3.12 python3.11 python3.14
# Arguments for `ebbtide up` (make run), pytest (make test) or each benchmark (make bench).
ARGS ?=
# Parallel test processes; 0 runs all tests in one.
JOBS ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
export PIP_NO_INPUT := 1

.PHONY: help run run-kubernetes demo-once demo-kubernetes-once test kube test-live e2e test-frameworks check format bench lock clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo '  For example: make run ARGS="--port 9000", make test ARGS="-k drain", make test JOBS=0'

run: $(VENV)/.ready-to-run ## play the story on a simulated fleet, then stay up until Ctrl-C
	@exec $(BIN)/ebbtide up --demo $(ARGS)

run-kubernetes: kube-for-nodes ## the same on real Kubernetes control planes of this machine, for your own kubectl
	@exec $(BIN)/ebbtide up --provider kwok --data ebbtide-data-kubernetes --demo $(ARGS)

demo-once: $(VENV)/.ready-to-run ## play the story in a folder of its own and end; fails if a step did not happen
	@here=$$(pwd) && folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && \
	cd "$$folder" && "$$here/$(BIN)/ebbtide" up --demo --once $(ARGS)

demo-kubernetes-once: kube-for-nodes ## the story on real control planes in a folder of its own, and end
	@$(MAKE) --no-print-directory demo-once ARGS="--provider kwok $(ARGS)"

.PHONY: kube-for-nodes  # not listed: what the two targets above need
kube-for-nodes: $(VENV)/.ready-to-run
	@$(BIN)/ebbtide kube install --only etcd,kube-apiserver,kube-scheduler,kube-controller-manager,kwok

test: $(VENV)/.ready-to-develop ## all tests that need only Python packages (they bring PostgreSQL)
	$(BIN)/python -m pytest tests -m "not live and not e2e" -n $(JOBS) $(ARGS) $(NONE_IS_FINE)
	cd workload && ../$(BIN)/python -m pytest -p no:asyncio $(ARGS) $(NONE_IS_FINE)

# A selection in ARGS may leave nothing to run in one of the two distributions.
NONE_IS_FINE = $(if $(ARGS),|| test $$? -eq 5)

kube: $(VENV)/.ready-to-run ## get Kubernetes' programs for test-live: found, taken or built (10 minutes)
	$(BIN)/ebbtide kube install $(ARGS)

test-live: $(VENV)/.ready-to-develop ## tests on a real Kubernetes control plane; says so if `make kube` is needed
	$(BIN)/python -m pytest tests/live $(ARGS) $(NONE_IS_FINE)

e2e: $(VENV)/.ready-to-develop ## real kubelets, containers and a training job; needs root, says what else
	$(BIN)/python -m pytest tests/e2e $(ARGS) $(NONE_IS_FINE)

test-frameworks: .venv-frameworks/.ready ## the workload package with the real torch and Lightning (3 GB to fetch)
	cd workload && ../.venv-frameworks/bin/python -m pytest tests/test_torch.py $(ARGS) $(NONE_IS_FINE)

CHECKS := "ruff format --check ." "ruff check ." "mypy" "lint-imports" "python -m pytest -q tests/house"
CHECKS_WORKLOAD := "ruff format --check ." "ruff check ." "mypy --python-version 3.10"

check: $(VENV)/.ready-to-develop ## format, lint, types, layers and house rules; runs all, then says which failed
	@failed=; \
	check() { echo "== $$1"; $(CURDIR)/$(BIN)/$$1 || failed="$$failed [$$1]"; }; \
	for command in $(CHECKS); do check "$$command"; done; \
	cd workload && for command in $(CHECKS_WORKLOAD); do check "$$command"; done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

format: $(VENV)/.ready-to-develop ## let ruff rewrite what it can
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	cd workload && ../$(BIN)/ruff check --fix-only --quiet . && ../$(BIN)/ruff format .

bench: $(VENV)/.ready-to-develop ## run every benchmark; results in build/bench
	@mkdir -p build/bench; failed=; \
	for file in benchmarks/[a-z]*.py benchmarks/*/[a-z]*.py; do \
	  [ -e "$$file" ] || continue; \
	  name=$$(basename "$$file" .py); echo "== $$name"; \
	  $(BIN)/python "$$file" --json "build/bench/$$name.json" $(ARGS) || failed="$$failed $$name"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

lock: $(VENV)/.ready-to-develop ## pin the newest versions that pyproject.toml allows (needs uv)
	$(LOCK) --upgrade --extra build --extra dev --output-file constraints.txt
	$(LOCK) --upgrade --constraints constraints.txt --extra build --output-file constraints-run.txt
	printf 'torch>=2.6\nnumpy\nlightning>=2.4\npytest>=8\nfsspec\npyyaml\n' | \
	  $(subst pyproject.toml,-,$(LOCK)) --upgrade --output-file constraints-frameworks.txt

LOCK := uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
  --no-header --no-annotate --no-emit-index-url

clean: ## remove .venv and everything that can be made again; data folders stay
	rm -rf $(VENV) .venv-frameworks build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

# $(1): a file of pinned and hashed packages
define install
	@echo "set-up: packages of $(1), pinned and checked by hash ..."
	@$(BIN)/python -m pip install --quiet --progress-bar off --no-compile --require-hashes -r $(1)
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-compile --editable .
	@touch $@
endef

$(VENV)/.ready-to-run: constraints-run.txt pyproject.toml | $(BIN)/python
	$(call install,constraints-run.txt)

$(VENV)/.ready-to-develop: constraints.txt pyproject.toml | $(BIN)/python
	$(call install,constraints.txt)
	@touch $(VENV)/.ready-to-run

# A room of its own: torch and what it brings are fifty times the size of everything else.
.venv-frameworks/.ready: constraints-frameworks.txt workload/pyproject.toml | $(BIN)/python
	@echo "set-up: packages of constraints-frameworks.txt, pinned and checked by hash ..."
	@$(BIN)/python -m venv .venv-frameworks
	@.venv-frameworks/bin/python -m pip install --quiet --progress-bar off --no-compile --require-hashes \
	  -r constraints-frameworks.txt
	@touch $@

$(BIN)/python:
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue; \
	  "$$python" -c 'import ensurepip, venv' 2>/dev/null || { without="$$without $$python"; continue; }; \
	  echo "set-up: $(VENV) with $$("$$python" --version) ..."; \
	  rm -rf $(VENV) && exec "$$python" -m venv $(VENV); \
	done; \
	echo "Ebbtide needs Python 3.11 or newer with its venv module; tried: $(or $(PYTHON),$(PYTHONS))." >&2; \
	if [ -n "$$without" ]; then echo "Without venv (on Debian and Ubuntu: apt install python3-venv):$$without" >&2; fi; \
	echo "Say which one to use: make run PYTHON=/path/to/python3" >&2; exit 1
