# make demo: draft lengths against plain decoding, on the embedded pair. make test: tests and linters. Each sets up .venv first where needed.
# make check: linters and the tests of what has changed since the last commit. make test-all: every test but repetitions
# that take minutes, what .ci/run runs. make test-long: these as well. The last line of pytest counts what was left out.
# make test-lowest, make test-newest: a quick choice of tests with other releases, in an environment of their own.
# make site: the documentation into site/; a link that leads nowhere is an error.
# make package: sdist and wheel into dist/, and the smoke sweep from the wheel alone.
# make container: an image for a GPU, of that wheel; CONTAINER=docker where there is no podman.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := python -m pip install --quiet --disable-pip-version-check

# PyTorch's build for both sets: `make test-lowest TORCH=torch==2.11.0`. A plain torch from PyPI brings 3 GB of CUDA.
TORCH ?= $(shell grep ^torch== constraints.txt)
QUICK := $(addprefix tests/,$(addsuffix .py,cli/test_smoke cli/test_tracking models/test_loading models/test_cached_model drafters/test_hidden_states \
	drafters/test_linear_head sampling/test_sampling rules/test_verifiers rules/test_external_verifiers replay/test_replay metrics/test_results tree/test_conf analysis/test_analysis \
	analysis/test_analysis_command))

# A file's tests stay with one worker, which makes what they share; the other one does not wait for it.
PYTEST := -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Compiled modules and rewritten assertions are kept: without them each process compiles 2,000 modules, 12 seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo check test test-all test-long lint clean test-lowest test-newest site package try-wheel container

demo: $(STAMP)
	$(BIN)/python -m specbench +exp=gamma_sweep
	@echo "Look at outputs/gamma_sweep/latest/report/report.md and the figures beside it, or open report.html."

check: $(STAMP) lint
	$(BIN)/python -m tests.helpers.changed | xargs -r $(BIN)/python -m pytest -n 2 -m "not thorough and not long"

test: $(STAMP) lint
	$(BIN)/python $(PYTEST) -m "not thorough and not long"

test-all: $(STAMP) lint
	$(BIN)/python $(PYTEST) -m "not long"

test-long: $(STAMP) lint
	$(BIN)/python $(PYTEST)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/ty check
	$(BIN)/lint-imports

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info < (3, 14), f"Python 3.11 to 3.13 is needed, {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12"'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) -c constraints.txt -e '.[dev,docs]'
	touch $(STAMP)

# Old releases warn of what newer ones beside them have deprecated.
test-lowest test-newest: test-%:
	$(PYTHON) -m venv --clear .venv-$*
	.venv-$*/bin/$(PIP) '$(TORCH)' $(if $(filter lowest,$*),-c constraints-lowest.txt) -e '.[dev]'
	.venv-$*/bin/python -m pytest -n 2 -W ignore::DeprecationWarning $(QUICK)

site: $(STAMP)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --fresh-env -c docs . site
	@echo "Open site/index.html."

# The wheel is made of the sdist, and both are checked as the package index does.
package: $(STAMP)
	rm -rf dist
	$(BIN)/$(PIP) -c constraints.txt -e '.[package]'
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*
	$(MAKE) try-wheel

# Run from a folder that holds nothing else, so that nothing but the wheel is imported.
try-wheel:
	$(PYTHON) -m venv --clear .venv-package
	.venv-package/bin/$(PIP) -c constraints.txt dist/*.whl
	mkdir .venv-package/run && cd .venv-package/run && ../bin/python -m specbench +exp=smoke

CONTAINER ?= podman
container: package
	$(CONTAINER) build --tag specbench --file Containerfile .

clean:
	rm -rf $(VENV) .venv-lowest .venv-newest .venv-package dist outputs site
