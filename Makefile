# make run  - set up and run the main job on a shipped trace
# make test - set up and run the tests
# make sanitize - run the tests of the engine on a native engine built with sanitizers
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TEST_STAMP := $(VENV)/.installed-test
TORCH := torch==2.13.0

.PHONY: run test lint lock sanitize clean

run: $(STAMP)
	@mkdir -p out
	$(BIN)/triosim train examples/resnet50-cpu.triosim --devices 8 --topology ring --link 10GB/s --latency 5us \
	  --json out/result.json --timeline out/timeline.json.gz --report out/report.html

test: $(TEST_STAMP)
	$(BIN)/python -m pytest

lint: $(TEST_STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

lock:
	$(BIN)/uv pip compile --universal --no-header --no-annotate --python-version 3.10 pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --universal --no-header --no-annotate --python-version 3.10 --extra dev pyproject.toml -o requirements-dev.lock

$(STAMP): requirements.lock pyproject.toml $(wildcard native/*)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

# Recording needs PyTorch; its tests are skipped where it cannot be installed.
$(TEST_STAMP): $(STAMP) requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(TORCH) || echo "PyTorch was not installed: tests of the recorder will be skipped"
	@touch $@

sanitize: $(TEST_STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check nanobind
	$(BIN)/python native/sanitize.py --cases 20000

clean:
	rm -rf $(VENV) out build dist src/*.egg-info
