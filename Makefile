# `make repro` and `make test` are the two commands; each creates the environment first if it is not there.
SHELL := /bin/bash
ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST))))
BIN := $(ROOT)/.venv/bin
PYTHON ?= python3
export PATH := $(BIN):$(PATH)
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1

.PHONY: help repro test test-fast env lint ui lock
help:
	@echo "make repro      environment + the whole graph: trains, evaluates and registers an agent"
	@echo "make test       environment + all tests, end-to-end ones included"
	@echo "make test-fast  tests without the end-to-end ones (< 2 min)"
	@echo "make lint       ruff and mypy"
	@echo "make ui         MLflow UI on the project's database (loopback)"
	@echo "make lock       pin the present environment into requirements.lock"

env: .venv/.ready
.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "error: Python %d.%d found, 3.11 or newer expected; next step: make PYTHON=python3.11 ..." % v[:2])'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

repro: env
	dvc repro
	@ferrata summary

test: env lint
	python -m pytest

test-fast: env
	python -m pytest -m "not slow"

lint: env
	ruff format --check src stages tests benchmarks
	ruff check src stages tests benchmarks
	mypy

ui: env
	mlflow ui --host 127.0.0.1 --port $${PORT:-5000} --backend-store-uri sqlite:///$(ROOT)/mlflow.db

lock:
	@{ echo "# Written by 'make lock' from requirements.in. torch comes first: its exact version keeps pip from fetching others."; \
	  python -m pip freeze --all --exclude-editable --exclude ferrata --exclude pip | sed 's/+cpu$$//' | grep -i '^torch=='; \
	  python -m pip freeze --all --exclude-editable --exclude ferrata --exclude pip | sed 's/+cpu$$//' | grep -iv '^torch=='; } > requirements.lock
