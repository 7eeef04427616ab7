# `make audit` and `make test` do everything on a machine that has Python 3.11 and make.
# No compiler is needed: every dependency has wheels. PYTHON=python3.13 takes another interpreter;
# 3.12 and 3.13 are untested as a whole.
PYTHON ?= python3.11
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?= fedaudit-run
# one test process per core, one thread each
WORKERS ?= -n auto --maxprocesses 4 --dist loadfile
# make test COVERAGE="--cov --cov-report=term:skip-covered" prints what the tests reach
COVERAGE ?=

# bytecode is written at first use instead of at installation, which halves the set-up time
unexport PYTHONDONTWRITEBYTECODE
unexport PYTHONPATH

.PHONY: audit test check bench bench-long fuzz nightly calibrate reproduce reproduce-fingerprint reproduce-two-stage reproduce-records reproduce-topology reproduce-attribution reproduce-attribution-smollm reproduce-active-membership reproduce-guard test-flower nightly-flower test-text nightly-text test-nvflare nightly-nvflare nightly-pfl docs env clean browser axe

audit: $(VENV)/core.stamp  ## environment, the built-in experiment, a report
	$(BIN)/fedaudit run --out $(RUN)

test: $(VENV)/dev.stamp browser check  ## environment, lint, types, tests
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(WORKERS) $(COVERAGE) -m "not nightly and not network"

check: $(VENV)/dev.stamp  ## lint, types, generated pages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/generate_papers.py --check

bench: $(VENV)/dev.stamp .venv-text/stamp  ## speed: every hot path against its naive twin and the usual peer
	$(BIN)/python benchmarks/federation.py
	$(BIN)/python benchmarks/dp_sgd.py
	$(BIN)/python benchmarks/linkage.py
	$(BIN)/python benchmarks/secure_sum.py
	$(BIN)/python benchmarks/allocation.py
	$(BIN)/python benchmarks/shadows.py
	$(BIN)/python benchmarks/membership.py
	$(BIN)/python benchmarks/attribution.py
	$(BIN)/python benchmarks/two_stage.py
	$(BIN)/python benchmarks/games.py
	$(BIN)/python benchmarks/guard.py
	$(BIN)/python benchmarks/epsilon.py
	$(BIN)/python benchmarks/trace.py
	$(BIN)/python benchmarks/recorders.py
	.venv-text/bin/python benchmarks/lora.py  # its peers are transformers and peft

bench-long: $(VENV)/dev.stamp  ## secure aggregation of ten thousand clients: minutes
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/secure_sum.py --clients 100 1000 10000 --columns 10000

# Goes on where it was stopped; FUZZ="--seed 7 --cases 50000" for another campaign.
fuzz: $(VENV)/dev.stamp  ## 10,000 damaged files of every kind: no traceback, no hang, nothing changed accepted
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz $(FUZZ)

nightly: $(VENV)/dev.stamp  ## long statistics, real downloads, fuzzing and random kills
	$(BIN)/python -m pytest -m "nightly or network"

reproduce: $(VENV)/dev.stamp  ## the papers' figures
	$(BIN)/python -m reproductions

reproduce-fingerprint: $(VENV)/dev.stamp  ## the tables and figures of one paper
	$(BIN)/python -m reproductions.fingerprint.run
	$(BIN)/python -m reproductions.fingerprint.run --wide

reproduce-two-stage: $(VENV)/dev.stamp
	$(BIN)/python -m reproductions.two_stage.run

reproduce-records: $(VENV)/dev.stamp
	$(BIN)/python -m reproductions.records.run

reproduce-topology: $(VENV)/dev.stamp
	$(BIN)/python -m reproductions.topology.run

reproduce-attribution: $(VENV)/dev.stamp
	$(BIN)/python -m reproductions.attribution.run

reproduce-active-membership: $(VENV)/dev.stamp
	$(BIN)/python -m reproductions.active_membership.run

reproduce-guard: $(VENV)/dev.stamp  ## detection and false alarms of the check of received models
	$(BIN)/python -m reproductions.guard.run evaluate

# About two hours, in blocks: goes on where it was stopped. CALIBRATE="--only fingerprint --minutes 10"
calibrate: $(VENV)/dev.stamp  ## false alarms, power and coverage of every audit: docs/calibration.md
	OMP_NUM_THREADS=1 $(BIN)/python -m reproductions.calibration.run $(CALIBRATE)

# About an hour: a real language model, 135 million weights.
reproduce-attribution-smollm: $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[text]"
	$(BIN)/fedaudit data get smollm2
	$(BIN)/python -m reproductions.attribution.smollm

# Flower pins older versions of several libraries: an environment of its own.
test-flower: .venv-flower/stamp  ## what needs Flower: recording, doctor, engine
	.venv-flower/bin/python -m pytest tests/recorders/flower tests/cli/test_flower.py -m "not nightly and not network"

nightly-flower: .venv-flower/stamp  ## Flower's own runtimes: Ray, and a SuperLink whose nodes are lost and come back
	.venv-flower/bin/python -m pytest tests/nightly/test_flower.py tests/recorders/flower tests/cli/test_flower.py -m "nightly or network"

.venv-flower/stamp: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv .venv-flower
	.venv-flower/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-flower.txt -e ".[flower]" "pytest>=8.3" "hypothesis>=6.100" "opacus>=1.6,<2"
	@touch $@

# transformers and peft are heavy, and nothing else is checked against them: an environment of its own.
test-text: .venv-text/stamp  ## what needs transformers and peft: language models, adapters, their watermark
	OMP_NUM_THREADS=1 .venv-text/bin/python -m pytest tests/tasks tests/watermarks tests/setup/test_marks.py -m "text and not nightly and not network"

nightly-text: .venv-text/stamp  ## the same with a real language model, which is downloaded
	.venv-text/bin/python -m pytest tests/nightly -m "text and (nightly or network)"

.venv-text/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-text
	.venv-text/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[text]" "pytest>=8.3" "hypothesis>=6.100"
	@touch $@

# A server that records needs FLARE, NumPy and safetensors, and nothing else of fedaudit's.
test-nvflare: .venv-nvflare/stamp $(VENV)/core.stamp  ## NVIDIA FLARE's simulator, recorded by a bare installation, audited by a whole one
	FEDAUDIT=$(abspath $(BIN)/fedaudit) .venv-nvflare/bin/python -m pytest --noconftest tests/recorders/nvflare/test_simulator.py

nightly-nvflare: .venv-nvflare/stamp  ## FLARE's POC mode, with a site that is killed
	.venv-nvflare/bin/python -m pytest --noconftest tests/nightly/test_nvflare.py

.venv-nvflare/stamp: pyproject.toml constraints-nvflare.txt
	$(PYTHON) -m venv .venv-nvflare
	.venv-nvflare/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints-nvflare.txt nvflare numpy safetensors pytest
	.venv-nvflare/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

nightly-pfl: .venv-pfl/stamp  ## Apple's pfl-research, recorded by the plain recorder
	.venv-pfl/bin/python -m pytest tests/nightly/test_pfl.py

.venv-pfl/stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-pfl
	.venv-pfl/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e . "pfl==0.6.0" "pytest>=8.3"
	@touch $@

docs: $(VENV)/dev.stamp  ## the documentation site, offline and strict
	$(BIN)/python docs/generate_papers.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

env: $(VENV)/dev.stamp

AXE     := .cache/axe/axe.min.js
AXE_SHA := 20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878

axe:  ## axe-core for the accessibility test: fetched once, checked, never part of the package
	@[ -f $(AXE) ] || { mkdir -p $(dir $(AXE)) && cd $(dir $(AXE)) \
	  && npm pack --silent axe-core@4.14.0 >/dev/null 2>&1 \
	  && tar -xzOf axe-core-4.14.0.tgz package/axe.min.js > axe.part && rm axe-core-4.14.0.tgz \
	  && echo "$(AXE_SHA)  axe.part" | sha256sum -c --quiet - && mv axe.part axe.min.js; } \
	  || echo "no axe-core: the accessibility test will be skipped"

# The browser test needs Chromium. Where it is missing and can be installed, it is; elsewhere the
# test says that it was skipped.
browser: axe
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	       && echo "installing chromium for the browser test" \
	       && apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo "no chromium: the browser test will be skipped"

clean:
	rm -rf $(VENV) site dist .mypy_cache .ruff_cache

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 or later is needed; set PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/core.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e .
	@touch $@

$(VENV)/dev.stamp: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/core.stamp
