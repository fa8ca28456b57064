# One command from a fresh clone to a served model: `make serve`. `make help` lists the rest.
# Variables: PYTHON (the interpreter that makes the environment), ARGS (passed on to serve and test).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup serve test lint stubs protos bench-quick bench-gate bench-engine bench-hindsight bench-policy chaos-policy chaos-cancels soak redis-server clean

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup: $(INSTALLED) ## Make the environment and prepare the default model
	@$(BIN)/burstgate models prepare

serve: setup ## Serve a model until Ctrl-C, such as make serve ARGS="--target FOLDER"
	@exec $(BIN)/burstgate serve $(ARGS)

test: setup ## Run the tests, such as make test ARGS="tests/unit -k verdict"
	@exec $(BIN)/pytest $(ARGS)

lint: $(INSTALLED) stubs ## Check style, types, imports, the contract and the generated stubs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/buf lint protos

# Generated again beside the committed ones: a difference means that `make protos` was forgotten.
stubs: $(INSTALLED)
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && PYTHON=$(CURDIR)/$(BIN)/python tools/protos.sh "$$fresh" && \
	for package in decode policy; do \
	  diff -r -q -x __pycache__ "$$fresh/burstgate/$$package" "clients/python/burstgate/$$package" || \
	  { echo "The generated stubs are stale: run \`make protos\` and commit the result." >&2; exit 1; }; \
	done

protos: $(INSTALLED) ## Generate the stubs from protos/
	PYTHON=$(CURDIR)/$(BIN)/python tools/protos.sh

bench-quick: setup ## Measure speculation against plain decoding in a few minutes
	@exec $(BIN)/python -m burstgate_bench.quick $(ARGS)

bench-engine: setup ## Measure the engine against mlx-lm and itself, alone and in batches
	@exec $(BIN)/python -m burstgate_bench.engine $(ARGS)

bench-hindsight: setup ## Measure AUTO against every mode held to the end, on real text
	@exec $(BIN)/python -m burstgate_bench.hindsight $(ARGS)

redis-server: $(INSTALLED)
	@PATH="$(BIN):$$PATH" command -v redis-server

bench-gate: $(INSTALLED) ## Score the policy on simulated workloads against every fixed mode
	@exec $(BIN)/python -m burstgate_bench.gate $(ARGS)

bench-policy: $(INSTALLED) ## Measure what a decision of the policy service costs
	@exec $(BIN)/python -m burstgate_bench.policy $(ARGS)

chaos-policy: $(INSTALLED) ## Kill the policy service 100 times under load
	@BURSTGATE_TEST_KILLS=100 exec $(BIN)/pytest tests/chaos/policy/test_kills.py $(ARGS)

chaos-cancels: setup ## Cancel 10,000 requests at every phase of their answers
	@BURSTGATE_TEST_CANCELS=10000 exec $(BIN)/pytest -s tests/unit/decode/test_many_cancels.py $(ARGS)

soak: setup ## Random traffic at the limit for half an hour, such as make soak ARGS="--minutes 2"
	@exec $(BIN)/python -m burstgate_bench.soak $(ARGS)

clean: ## Remove what make and the tools left in this folder, the environment included
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
	  { echo "$(PYTHON) is not installed. Burstgate needs Python 3.11 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Burstgate needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "$(PYTHON) lacks the venv module. On Debian and Ubuntu: apt install $$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 1; }
	@echo "Making the environment in $(VENV); the first time takes a few minutes."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
