# make run      - set up and run the main job on a shipped trace
# make test     - set up and run the tests
# make explore  - the same with other random examples than last time
# make lint     - style and types
# make check    - both, as continuous integration does
# make minimum  - run the tests with the oldest versions of the dependencies that are declared to work
# make docs     - build the pages of the documentation
# make sanitize - run tests on native code built with sanitizers: of memory, then of threads
# make lock     - choose the versions of all dependencies anew
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-test
DOCS_STAMP := $(VENV)/.installed-docs
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# Recording needs PyTorch; without it (TORCH=) its tests are skipped.  There are builds of it for many machines, so that it
# is not locked with a hash, as everything else is.
TORCH ?= torch==2.13.0
UV := uv==0.13.9
# Tests run side by side, one at a time on each processor.  Neighbours stay together, so that what tests of a file share is
# made once.
WORKERS ?= auto
PYTEST := -m pytest -n $(WORKERS) --dist worksteal

.PHONY: run test explore lint check minimum docs lock sanitize clean

run: $(STAMP)
	@mkdir -p out
	$(BIN)/triosim train examples/resnet50-cpu.triosim --devices 8 --topology ring --link 10GB/s --latency 5us \
	  --json out/result.json --timeline out/timeline.json.gz --report out/report.html

test: $(TEST_STAMP)
	$(BIN)/python $(PYTEST)

explore: $(TEST_STAMP)
	TRIOSIM_EXPLORE=1 $(BIN)/python $(PYTEST)

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

check: lint test

docs: $(DOCS_STAMP)
	$(BIN)/mkdocs build --strict --quiet --site-dir out/docs

LOCK := $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --python-version 3.10 \
  --no-emit-find-links --no-emit-index-url

lock: $(STAMP)
	$(INSTALL) $(UV)
	$(LOCK) pyproject.toml -o requirements.lock
	$(LOCK) pyproject.toml --extra dev -o requirements-dev.lock
	$(LOCK) pyproject.toml --extra docs -o requirements-docs.lock
	$(LOCK) --group build -o requirements-build.lock

$(STAMP): requirements.lock requirements-build.lock pyproject.toml $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r requirements.lock -r requirements-build.lock
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(TEST_STAMP): $(STAMP) requirements-dev.lock
	$(INSTALL) --require-hashes -r requirements-dev.lock
	$(if $(TORCH),$(INSTALL) $(TORCH) || echo "PyTorch was not installed: tests of the recorder will be skipped")
	@touch $@

$(DOCS_STAMP): $(STAMP) requirements-docs.lock
	$(INSTALL) --require-hashes -r requirements-docs.lock
	@touch $@

# In an environment of its own, made for the oldest Python that is supported: many a minimum knows no newer one.
minimum: $(STAMP)
	$(INSTALL) $(UV)
	$(BIN)/uv venv --quiet --clear --python $(PYTHON) $(VENV)-minimum
	$(BIN)/uv pip install --quiet --python $(VENV)-minimum --resolution lowest-direct --editable '.[dev]'
	$(VENV)-minimum/bin/python $(PYTEST)

sanitize: $(TEST_STAMP)
	$(BIN)/python native/sanitize.py --cases 20000
	$(BIN)/python native/sanitize.py --cases 500 --of threads

clean:
	rm -rf $(VENV) $(VENV)-minimum out build dist src/*.egg-info
