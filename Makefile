# `make` prints what there is. Nothing has to be installed beforehand but Python (3.11 to 3.14, with venv).
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-backfill demo-rollout test test-nemesis check soak bench chaos nemesis nemesis-backfill up install install-light lock clean distclean
SHELL := /bin/sh

ENGINE ?= vllm
VENV := $(abspath $(or $(HEADRACE_VENV),.venv))
BIN := $(VENV)/bin

INSTALL = python=$$(ops/setup/find-python) && "$$python" ops/setup/install.py --venv "$(VENV)"
ENGINE_SETS = $(if $(filter vllm,$(ENGINE)),engine-cpu)

help: ## print this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | while IFS='	' read -r target text; do \
		printf '  make %-15s %s\n' "$$target" "$$text"; done
	@printf '\n  ENGINE=vllm|simulated (default: vllm)    HEADRACE_VENV=DIR    HEADRACE_PYTHON=PATH\n'

demo: ## 40 movie records through Kafka and a real model (ENGINE=simulated: without one)
	@engine=$$($(INSTALL) --print-engine "$(ENGINE)") && $(INSTALL) light $(ENGINE_SETS) && \
		exec "$(BIN)/python" -m headrace.ops.demo --engine "$$engine"

demo-backfill: ## 3,201 films as a table in, tagged out, though the process is killed on the way (no model needed)
	@$(INSTALL) light
	@exec "$(BIN)/python" -m headrace.ops.backfill_demo $(if $(ROWS),--rows $(ROWS))

demo-rollout: ## watch partitions move to another version, and back from a bad one, on a real Kafka
	@$(INSTALL) light
	@exec "$(BIN)/python" -m headrace.ops.rollout_demo

up: ## a broker, the topics and a worker of examples/movie-tagger, until Ctrl-C
	@engine=$$($(INSTALL) --print-engine "$(ENGINE)") && $(INSTALL) light $(ENGINE_SETS) && \
		exec "$(BIN)/headrace" up --package examples/movie-tagger --engine "$$engine"

# Two processes, each with a broker of its own; all that needs the real engine goes to one of them (tests/process_groups.py).
test: ## all tests but the long ones
	@$(INSTALL) light $(ENGINE_SETS) dev
	"$(BIN)/pytest" -m "not soak and not nemesis" --numprocesses 2

test-nemesis: ## two minutes of faults on three real brokers
	@$(INSTALL) light $(ENGINE_SETS) dev
	"$(BIN)/pytest" -m nemesis -p no:unraisableexception tests/nemesis # sockets of clients whose broker was killed

check: ## lint, format, types, layers
	@$(INSTALL) light $(ENGINE_SETS) dev
	"$(BIN)/ruff" check
	"$(BIN)/ruff" format --check
	"$(BIN)/basedpyright" --pythonpath "$(BIN)/python"
	"$(BIN)/lint-imports"

soak: ## property tests with 5,000 examples each, and the long tests
	@$(INSTALL) light $(ENGINE_SETS) dev
	HEADRACE_EXAMPLES=5000 "$(BIN)/pytest" -m "soak or not soak" --timeout 3600 tests/property
	"$(BIN)/pytest" -m "soak or nemesis" --timeout 3600 --ignore tests/property || test $$? -eq 5 # 5: there are none

bench: ## what the path through Kafka costs, as ratios
	@$(INSTALL) light $(ENGINE_SETS)
	"$(BIN)/headrace" bench path

chaos: ## half a minute of killed workers on a real Kafka, and whether anything was lost (SEED=1)
	@$(INSTALL) light
	@exec "$(BIN)/python" -m headrace.ops.chaos $(if $(SEED),--seed $(SEED))

nemesis: ## kill, freeze and cut workers and brokers, then count (SEED, MINUTES, WORKERS, RATE, ORDER=key, VLLM=n, BREAK)
	@$(INSTALL) light $(if $(filter-out 0,$(VLLM)),engine-cpu) dev
	@PYTHONPATH="$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}" exec "$(BIN)/python" -m nemesis \
		$(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(WORKERS),--workers $(WORKERS)) \
		$(if $(RATE),--rate $(RATE)) $(if $(ORDER),--order $(ORDER)) $(if $(VLLM),--vllm $(VLLM)) \
		$(if $(BREAK),--break $(BREAK)) $(if $(KINDS),--kinds "$(KINDS)")

nemesis-backfill: ## kill everything under backfill jobs, and compare with an undisturbed run (SEED, ROWS, KILLS)
	@$(INSTALL) light dev
	@PYTHONPATH="$(CURDIR)/tests$${PYTHONPATH:+:$$PYTHONPATH}" exec "$(BIN)/python" -m nemesis.backfill \
		$(if $(SEED),--seed $(SEED)) $(if $(ROWS),--rows $(ROWS)) $(if $(KILLS),--kills $(KILLS))

install: ## the virtual environment with everything; the other targets do this themselves
	@$(INSTALL) light $(ENGINE_SETS) dev

install-light: ## the same without an engine, tests and checks
	@$(INSTALL) light

lock: ## resolve pyproject.toml anew into ops/locks (UPGRADE=1: take newer versions)
	@$(INSTALL) dev light
	"$(BIN)/python" ops/setup/lock.py $(if $(UPGRADE),--upgrade)

clean: ## remove caches and build output
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -path ./.git -prune -o -path "$(VENV)" -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean ## the same, and the virtual environment
	@if [ -f "$(VENV)/pyvenv.cfg" ]; then echo rm -rf "$(VENV)"; rm -rf "$(VENV)"; fi
