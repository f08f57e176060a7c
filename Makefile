# make demo        train and evaluate the small agent; needs only Python 3.11+ and make
# make test        the test suite (nearly an hour on 2 cores the first time; compiled programs are kept)
# make test-all    hours: the slow checks too, with coverage; then the suite as users compile it (make test-optimized),
#                  on the newest Python and JAX (make test-newest), for TPUs (make test-tpu), and with tools of others
#                  (make test-tools)
# make test-tpu    programs compiled for TPUs that need not be present: meshes, plans, cycles of a step
# make test-tools  the tests that the others skip without Harbor, Inspect, Chromium or Node: trajectories in the formats
#                  of Harbor (ATIF 1.7 and 1.8) and Inspect, and the page of `agentrl view` in a browser; needs Chromium,
#                  Node 20 or newer and Python 3.13, and fails where one is missing
# make lint        format, style and types
# make docs        the docs site, into build/site
# make page        the page of `agentrl view` from its sources; needs Node 20 or newer

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# The Python of requirements-newest.txt and requirements-harbor.txt.
PYTHON_NEWEST ?= python3.13
BIN := .venv/bin

# Two processes (three compile more, and take longer on two cores); tests/conftest.py says which tests stay in one of
# them, because they share compiled programs. Skipped tests are listed at the end, with what they lack.
PYTEST := -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -rs

# Compiled programs are kept between runs; tests that start processes of their own share them.
CACHE := JAX_PLATFORMS=cpu JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache/jax JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.2

.PHONY: demo test test-all test-slow test-optimized test-newest test-tpu test-tools lint docs page format clean

demo: .venv/installed
	$(BIN)/agentrl train experiments/demo.yaml

# A test that hangs is ended after 20 minutes, with the stacks of its threads: far above what any quick one takes.
test: .venv/installed-dev
	$(CACHE) $(BIN)/python $(PYTEST) -m "not slow" --timeout 1200

test-all: test-slow test-optimized test-newest test-tpu test-tools

# Quick and slow tests, with arrays compared with their annotations. Processes that tests start are counted too.
test-slow: .venv/installed-dev
	$(CACHE) TEST_SHAPES=1 $(BIN)/python $(PYTEST) --cov --cov-report term --cov-fail-under 93

test-optimized: .venv/installed-dev
	$(CACHE) TEST_OPTIMIZED=1 $(BIN)/python $(PYTEST) -m "not slow"

test-newest: .venv-newest/installed
	$(CACHE) .venv-newest/bin/python $(PYTEST) -m "not slow"

# The TPU compiler is kept out of .venv, since JAX looks for a TPU where it is installed.
test-tpu: .venv/installed-dev .libtpu/installed
	$(CACHE) TEST_TOOLS=1 PYTHONPATH=$(CURDIR)/.libtpu $(BIN)/python $(PYTEST) \
		tests/unit/parallel/test_slices.py tests/unit/studies/test_plan.py tests/unit/studies/test_sweep.py tests/unit/benchmarks/test_decode_step.py

# Where a tool is missing these tests fail, instead of being skipped.
TOOL_TESTS := tests/formats tests/viewer tests/unit/evaluate/test_recorded_evaluation.py tests/unit/evaluate/test_scripted_recording.py

test-tools: .venv-inspect/installed .venv-harbor/installed
	cd agentrl_jax/viewer/web && npm ci --no-fund --no-audit
	$(CACHE) TEST_TOOLS=1 HARBOR_PYTHON=$(CURDIR)/.venv-harbor/bin/python \
		.venv-inspect/bin/python $(PYTEST) -m "not slow" --timeout 1200 $(TOOL_TESTS)

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Warnings are errors: a link or an anchor that leads nowhere ends the build.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir build/site
	@echo "built build/site/index.html"

page:
	cd agentrl_jax/viewer/web && npm ci --no-fund --no-audit && npm run build

format: .venv/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-newest .venv-inspect .venv-harbor .libtpu .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage* build dist *.egg-info

.venv/created:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv was found; install one or run: make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv .venv
	touch $@

.venv/installed: requirements.txt setup.py pyproject.toml | .venv/created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

.venv/installed-dev: requirements-dev.txt .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-dev.txt
	touch $@

.venv/installed-docs: requirements-docs.txt .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-docs.txt
	touch $@

# A virtual environment of Python 3.13 in the folder of the target.
define NEWEST_VENV
@$(PYTHON_NEWEST) -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null \
	|| { echo "$(PYTHON_NEWEST) is not Python 3.13 with venv; install it or run: make $@ PYTHON_NEWEST=/path/to/python3.13"; exit 2; }
$(PYTHON_NEWEST) -m venv $(@D)
endef

.venv-newest/installed: requirements-newest.txt setup.py pyproject.toml
	$(NEWEST_VENV)
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-newest.txt
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

.venv-harbor/installed: requirements-harbor.txt
	$(NEWEST_VENV)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-harbor.txt
	touch $@

.libtpu/installed: requirements-tpu.txt | .venv/created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(@D) -r requirements-tpu.txt
	touch $@

.venv-inspect/installed: requirements.txt requirements-dev.txt requirements-inspect.txt setup.py pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv was found; install one or run: make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-dev.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-inspect.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@
