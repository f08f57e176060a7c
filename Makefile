# make demo           train and evaluate the small agent; needs only Python 3.11+ and make
# make test           the test suite: tests/unit, tests/property, tests/golden and tests/integration
# make test-nightly   the slow checks: tests/nightly, and the cases elsewhere that are marked `nightly`
# make test-mutants   applies faults to copies of the checkout, and fails where the quick tests find none of them
# make test-coverage  the coverage of lines and branches by the quick tests, by folder
# make test-all       hours: all of these; then the suite as users compile it (make test-optimized), on the newest Python
#                     and JAX (make test-newest), for TPUs (make test-tpu), and with tools of others (make test-tools)
# make test-tpu       programs compiled for TPUs that need not be present: meshes, plans, cycles of a step
# make test-tools     the tests that the others skip without Harbor, Inspect, W&B, Chromium or Node: trajectories in the formats
#                     of Harbor (ATIF 1.7 and 1.8) and Inspect, and the page of `agentrl view` in a browser; needs Chromium,
#                     Node 20 or newer and Python 3.13, and fails where one is missing
# make lint           format, style and types
# make docs           the docs site, into build/site
# make page           the page of `agentrl view` from its sources; needs Node 20 or newer

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# The Python of requirements-newest.txt and requirements-harbor.txt.
PYTHON_NEWEST ?= python3.13
BIN := .venv/bin
# Where this is set, as in many containers, every process compiles all modules again, which takes ten seconds.
unexport PYTHONDONTWRITEBYTECODE

# Two processes (three compile more, and take longer on two cores), which share compiled programs, as
# tests/helpers/xla_settings.py says. Tests of one file stay in one of them. Skipped tests are listed at the end, with
# what they lack.
PYTEST := -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder -rs
SHELVES := tests/unit tests/property tests/golden tests/integration
# Expensive cases on these shelves are marked; they run at night.
QUICK := -m "not nightly" $(SHELVES)

# Quoted, because the checkout may be in a folder whose name has spaces.
HERE := "$(CURDIR)"

.PHONY: demo test test-all test-nightly test-mutants test-coverage test-optimized test-newest test-tpu test-tools lint docs page format clean

demo: .venv/installed
	$(BIN)/agentrl train experiments/demo.yaml

test: .venv/installed-dev
	$(BIN)/python $(PYTEST) $(QUICK)

test-all: test test-nightly test-mutants test-coverage test-optimized test-newest test-tpu test-tools

# With arrays compared with their annotations, and with other examples of Hypothesis each day, whose seed is printed.
test-nightly: .venv/installed-dev
	TEST_SHAPES=1 TEST_HYPOTHESIS=nightly $(BIN)/python $(PYTEST) --timeout 1800 \
		--hypothesis-seed=$$(date +%Y%m%d) -m "nightly or property" tests

# The first command has run the tests without a fault.
test-mutants: .venv/installed-dev
	$(BIN)/python tests/nightly/mutants.py
	$(BIN)/python tests/nightly/mutants.py --generated 150 --seed 0 --unchecked

# Processes that tests start are counted too.
test-coverage: .venv/installed-dev
	$(BIN)/python $(PYTEST) --cov --cov-report json:.coverage.json --timeout 600 $(QUICK)
	$(BIN)/python tests/nightly/coverage_by_folder.py .coverage.json

test-optimized: .venv/installed-dev
	TEST_OPTIMIZED=1 $(BIN)/python $(PYTEST) --timeout 1200 $(SHELVES)

test-newest: .venv-newest/installed
	.venv-newest/bin/python $(PYTEST) --timeout 1200 $(SHELVES)

TPU_TESTS := tests/unit/parallel/test_slices.py tests/nightly/studies/test_plan.py tests/nightly/studies/test_sweep.py \
	tests/nightly/benchmarks/test_decode_step.py

# The TPU compiler is kept out of .venv, since JAX looks for a TPU where it is installed.
test-tpu: .venv/installed-dev .libtpu/installed
	TEST_TOOLS=1 PYTHONPATH=$(HERE)/.libtpu $(BIN)/python $(PYTEST) --timeout 1800 $(TPU_TESTS)

# Where a tool is missing these tests fail, instead of being skipped.
TOOL_TESTS := tests/unit/formats tests/nightly/viewer tests/nightly/runs/test_wandb.py tests/unit/evaluate/test_recording.py

test-tools: .venv-inspect/installed .venv-harbor/installed
	cd agentrl_jax/viewer/web && npm ci --no-fund --no-audit
	TEST_TOOLS=1 HARBOR_PYTHON=$(HERE)/.venv-harbor/bin/python \
		.venv-inspect/bin/python $(PYTEST) --timeout 1200 $(TOOL_TESTS)

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

.venv/packages: requirements.txt | .venv/created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements.txt
	touch $@

.venv/packages-dev: requirements-dev.txt | .venv/created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-dev.txt
	touch $@

.venv/installed: .venv/packages setup.py pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation --editable .
	touch $@

# Both lists at once: they name different packages, and one process unpacks on one core.
.venv/installed-dev: requirements.txt requirements-dev.txt setup.py pyproject.toml | .venv/created
	$(MAKE) --no-print-directory --jobs 2 .venv/installed .venv/packages-dev
	touch $@

.venv/installed-docs: requirements-docs.txt .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-docs.txt
	touch $@

# A virtual environment of Python 3.13 in the folder of the target.
define NEWEST_VENV
@$(PYTHON_NEWEST) -c 'import sys, venv; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null \
	|| { echo "$(PYTHON_NEWEST) is not Python 3.13 with venv; install it or run: make $@ PYTHON_NEWEST=/path/to/python3.13"; exit 2; }
$(PYTHON_NEWEST) -m venv $(@D)
endef

.venv-newest/installed: requirements-newest.txt setup.py pyproject.toml
	$(NEWEST_VENV)
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-newest.txt
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation --editable .
	touch $@

.venv-harbor/installed: requirements-harbor.txt
	$(NEWEST_VENV)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-harbor.txt
	touch $@

.libtpu/installed: requirements-tpu.txt | .venv/created
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --upgrade --target $(@D) -r requirements-tpu.txt
	touch $@

.venv-inspect/installed: requirements.txt requirements-dev.txt requirements-inspect.txt requirements-wandb.txt setup.py pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv was found; install one or run: make PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-dev.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-wandb.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps -r requirements-inspect.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --no-build-isolation --editable .
	touch $@
