# Tenon. `make serve` and `make test` need only python3 (3.11 or later) with venv, and make.
#
#   make serve        install, fetch the default model, serve on 127.0.0.1 (ARGS="..." adds options)
#   make test         install, fetch the default model, run every test of normal length
#   make acceptance   the long checks; fetches the test models too
#   make lint         formatting, lint, types, protos
#   make models       fetch all test models (600 MB)
#   make protos       write the stubs again after a change in protos/
#   make lock         write requirements/dev.lock again after a change of dependencies
#
# TORCH=cpu      (default) installs torch $(TORCH_VERSION), from TORCH_INDEX if it is set
# TORCH=system   uses the torch that this machine's Python has, for machines with a CUDA torch

PYTHON ?= python3
TORCH ?= cpu
TORCH_VERSION ?= 2.13.0
TORCH_INDEX ?=
PYTEST_ARGS ?=
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(TORCH)
NODE_TESTS := tests/gateway/node
NODE_INSTALLED := $(NODE_TESTS)/node_modules/.installed

# Debian's pip reads no user configuration in a venv other than the usual files; nothing is set here.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: venv serve test acceptance lint models protos lock clean

venv: $(INSTALLED) $(NODE_INSTALLED)

$(INSTALLED): requirements/dev.lock pyproject.toml client/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Tenon needs Python 3.11 or later; set PYTHON=")'
	@echo "==> creating $(VENV) (TORCH=$(TORCH))"
ifeq ($(TORCH),system)
	@$(PYTHON) -m venv --system-site-packages $(VENV)
	@$(BIN)/python -c 'import torch; print("==> torch", torch.__version__, "of this system")' || \
		{ echo "TORCH=system, but this Python has no torch; use TORCH=cpu"; exit 2; }
else ifeq ($(TORCH),cpu)
	@$(PYTHON) -m venv $(VENV)
	@echo "==> installing torch $(TORCH_VERSION) (about 200 MB)"
	@$(PIP) torch==$(TORCH_VERSION) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX))
else
	@echo "TORCH is '$(TORCH)'; allowed are cpu, system"; exit 2
endif
	@echo "==> installing pinned dependencies (about 120 MB)"
	@$(PIP) --require-hashes -r requirements/dev.lock
	@echo "==> installing tenon and tenon-server from this checkout"
	@$(PIP) --no-deps --no-build-isolation -e ./client -e .
	@touch $@

# The gateway is also tested with the npm client, where there is a Node.js.
$(NODE_INSTALLED): $(NODE_TESTS)/package-lock.json
	@if command -v npm >/dev/null; then \
		echo "==> installing the npm openai client for tests"; \
		npm ci --prefix $(NODE_TESTS) --silent --no-audit --no-fund --ignore-scripts && touch $@; \
	else echo "==> no npm here: the npm client's tests will be skipped"; fi

serve: $(INSTALLED)
	@$(BIN)/tenon serve $(ARGS)

test: venv
	@$(BIN)/tenon pull smollm2
	@echo "==> running the tests"
	@$(BIN)/python -m pytest -m "not acceptance" $(PYTEST_ARGS)

acceptance: venv models
	@echo "==> running the long checks"
	@$(BIN)/python -m pytest -m acceptance -s $(PYTEST_ARGS)

lint: $(INSTALLED)
	@echo "==> ruff, mypy, buf, stubs"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/buf lint protos
	@$(BIN)/buf format protos --diff --exit-code
	@$(BIN)/python scripts/check_breaking.py
	@$(BIN)/python scripts/generate_stubs.py --check

models: $(INSTALLED)
	@$(BIN)/tenon pull smollm2
	@$(BIN)/python -m tenon.models.fetch tests/models.toml

protos: $(INSTALLED)
	@$(BIN)/python scripts/generate_stubs.py

lock: $(INSTALLED)
	@$(BIN)/python scripts/lock_requirements.py $(ARGS)

clean:
	rm -rf $(VENV) $(NODE_TESTS)/node_modules build dist *.egg-info client/*.egg-info
