# gdrpy: `make demo` runs the main job, `make test` everything that CI runs.
# Both set up what they need: a virtual environment in .venv, and the C parts built in place.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
C_SOURCES := $(wildcard gdrpy/_core/*.[ch] gdrpy/sim/src/*.[ch] tests/c/*.[ch] tests/rm/*.[ch] \
	benchmarks/*.[ch] driver/uapi/*.h)

.PHONY: help demo test test-c test-py lint format bench build clean

help:
	@echo "make demo    validate and measure, on the real GPU if there is one, else simulated"
	@echo "make test    lint, C tests under sanitizers, Python tests"
	@echo "make lint    formatting, types, warnings as errors"
	@echo "make bench   every benchmark; writes benchmarks/results"
	@echo "make clean   remove what the build made"

demo: build
	@$(BIN)/gdrpy info
	@$(BIN)/gdrpy validate
	@$(BIN)/gdrpy copybw

test: lint test-c test-py

test-c: build
	@$(MAKE) --no-print-directory -C tests/c check

test-py: build
	@$(BIN)/pytest -q

bench: build
	@$(BIN)/python benchmarks/run.py

lint: $(VENV)/.lint
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)

format: $(VENV)/.lint
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(C_SOURCES)

build: $(VENV)/.built

clean:
	rm -rf build dist *.egg-info gdrpy/_core/*.so gdrpy/sim/libcuda.so.1 tests/c/build $(VENV)/.built
