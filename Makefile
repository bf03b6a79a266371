# Everything a target needs is set up by the target: `make demo` and `make test` work on a fresh clone.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Two processes of one thread each: the suite is made for two cores.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2
# Set up for users, and for development.
BASE := $(VENV)/.base
READY := $(VENV)/.ready

.PHONY: setup demo test words test-long test-guards test-workstation test-postgres test-browser test-hospital check docs docs-version docs-tools notebooks bench gpu fuzz mutants encoder results package wheels container sbom clean

setup: $(READY)

# torch first and pinned: whatever follows then finds it there. Without a GPU, docs/install.md has the index to take it from.
TORCH_INDEX ?=
$(BASE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "Python's venv module is missing (Debian: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0 --constraint constraints.txt $(TORCH_INDEX)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[plots]'
	touch $(BASE)

$(READY): $(BASE)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(BASE)
	$(BIN)/radweave demo --out demo --overwrite

# The core in minutes. Kills, whole benchmarks and several processes are test-long; the workstation has a target of its own.
SHORT := --ignore tests/workstation -m "not slow and not gpu and not programs and not browser and not site and not long"
test: $(READY)
	$(PYTEST) $(SHORT)

test-long: $(READY)
	$(PYTEST) --ignore tests/workstation -m long

# The exchange probe of presets for scans and of every `small` and `paper`, each trained for minutes: an hour of one core.
test-guards: $(READY)
	$(PYTEST) -m slow tests/experiments/test_guards.py

# The web application and the hospital's interfaces, without other programs.
test-workstation: $(READY)
	$(PYTEST) tests/workstation

# The workstation's tests with its databases on a PostgreSQL server that is started for them: Debian's postgresql is needed.
test-postgres: $(READY)
	@command -v initdb >/dev/null || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql; } \
	  || { echo "PostgreSQL is missing (Debian: apt-get install postgresql)"; exit 1; }
	RADWEAVE_TEST_POSTGRES=1 $(PYTEST) -m "not gpu and not browser and not programs and not slow" tests/workstation

# The workstation's pages in a real browser: Debian's Chromium, which is installed where root and apt answer.
test-browser: $(READY)
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
	  || { echo "Chromium is missing (Debian: apt-get install chromium)"; exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/pytest -m browser tests/workstation/browser

# Reports against the programs of others: an archive, a validator, DCMTK. They are installed where root and apt answer;
# where they cannot be had, the tests skip with a reason.
PROGRAMS := orthanc orthanc-dicomweb dcmtk dicom3tools poppler-utils
test-hospital: $(READY)
	@command -v Orthanc >/dev/null && command -v dciodvfy >/dev/null && command -v dsrdump >/dev/null \
	  && command -v pdftotext >/dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq \
	  && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $(PROGRAMS); } \
	  || echo "some of $(PROGRAMS) are missing: the tests that need them are skipped"
	OMP_NUM_THREADS=1 $(BIN)/pytest -m programs tests/workstation

# Notebooks too: their cells are code.
CHECKED := src tests bench docs/site docs/tutorials
check: $(READY)
	$(BIN)/ruff check $(CHECKED)
	$(BIN)/ruff format --check $(CHECKED)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python bench/words.py
	$(PYTEST) $(SHORT)

# Private words where the field has its own, and docstrings that begin with a question word.
words: $(READY)
	$(BIN)/python bench/words.py

# The documentation as a site: a warning is an error (with --quiet none is noticed), and no page may load anything from elsewhere.
SITE ?= build/site
docs: docs-tools
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --clean --site-dir $(abspath $(SITE))
	RADWEAVE_SITE=$(abspath $(SITE)) OMP_NUM_THREADS=1 $(BIN)/pytest -m site tests/docs

# The site as it is now, kept beside those of earlier versions.
docs-version: docs
	$(BIN)/python docs/site/versions.py $(SITE) build/versions

# The tutorials, each in a folder of its own in build/notebooks, with its output: minutes.
NOTEBOOKS ?= $(wildcard docs/tutorials/*.ipynb)
notebooks: docs-tools
	@for book in $(NOTEBOOKS); do \
	  folder=build/notebooks/$$(basename $$book .ipynb); rm -rf $$folder; mkdir -p $$folder; cp $$book $$folder; echo "== $$book"; \
	  PATH="$(abspath $(BIN)):$$PATH" $(BIN)/jupyter-execute --inplace --timeout 600 $$folder/*.ipynb || exit 1; \
	done

docs-tools: $(VENV)/.docs
$(VENV)/.docs: $(READY)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

# Benchmarks print ratios of two things measured in one run; they are run by hand.
bench: $(READY)
	@for script in $(filter-out $(addprefix bench/bench_,probe.py scores.py size.py view_rule.py),$(wildcard bench/bench_*.py)); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# What only a GPU can tell: tests, curves beside the CPU's, memory, speed; docs/gpu.md. GPU=standin runs it without one.
GPU ?= cuda
gpu: $(READY)
	$(BIN)/python bench/gpu.py --device $(GPU) --out runs/gpu $(if $(filter standin,$(GPU)),--minutes 60)

# Damaged files of every kind that is read, EACH of each, and what became of them: minutes.
EACH ?= 1000
fuzz: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python bench/fuzz.py --each $(EACH)

# Faults planted one at a time in a copy, and which of them no test notices: tests/planted. It goes on where it stopped.
mutants: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/planted/plant.py

# The start weights that the package brings: docs/phantom_encoder.md. Minutes on two cores for each; the hashes it prints go into nn/vision/pretrained.py.
ENCODER ?= runs/encoder
encoder: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python bench/make_encoder.py $(ENCODER)

# All methods on the phantoms, and on IU X-Ray where RADWEAVE_TEST_DATA is the folder of real data: docs/benchmark.md.
# Hours on two cores; the same command goes on where it stopped. Runs, samples and the JSON stay in BENCH, the summary goes to docs.
BENCH ?= runs/bench
JOBS ?= 2
# weave has as many encoders as the ensemble: five on radiographs, else three. 360 scans take an hour with two jobs.
SIZES := ct:weave:model.members=2 iu:weave:model.members=2 iu:stages.report.epochs=2
MEASURE = OMP_NUM_THREADS=1 THP_MEM_ALLOC_ENABLE=1 $(BIN)/radweave bench $(BENCH) --seeds 3 --jobs $(JOBS) --pages docs/results
results: $(READY)
	$(MEASURE) --sets xray --prior both --ensemble 5 $(SIZES)
	$(MEASURE) --sets ct --ct-studies 360 --prior both --ensemble 3 $(SIZES)
	@if [ -d "$(RADWEAVE_TEST_DATA)/iu_xray" ]; then \
	  [ -d $(BENCH)-iu ] || $(BIN)/radweave data import iu-xray "$(RADWEAVE_TEST_DATA)/iu_xray" --out $(BENCH)-iu || exit 1; \
	  $(MEASURE) --sets iu --iu $(BENCH)-iu --ensemble 3 $(SIZES); \
	fi

# Wheel and sdist, in dist/.
package: $(READY)
	rm -rf build/lib
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install --quiet build==1.6.1
	build/tools/bin/python -m build --outdir dist .

# The newest wheel in an empty environment of each Python, from installing it to a report of a run that it trained:
# minutes, and some gigabytes each. A Python that is not here fails.
PYTHONS ?= python3.11 python3.12 python3.13
wheels: package
	@wheel=$$(ls -t dist/*.whl | head -1); \
	for python in $(PYTHONS); do \
	  folder=$(abspath build/wheels)/$$(basename $$python); rm -rf $$folder; mkdir -p $$folder; unset PYTHONPATH; \
	  echo "== $$python: $$($$python -V)"; \
	  $$python -m venv $$folder/venv \
	  && $$folder/venv/bin/pip install --quiet torch==2.13.0 --constraint constraints.txt $(TORCH_INDEX) \
	  && $$folder/venv/bin/pip install --quiet --constraint constraints.txt $$wheel \
	  && (cd $$folder && PATH="$$folder/venv/bin:$$PATH" && radweave --version && radweave methods \
	    && radweave phantom --out data --studies 60 && radweave fit data --out fitted --epochs 2 \
	    && radweave generate fitted/run $$(ls data/images/*.png | head -1)) || exit 1; \
	done

# The image of Dockerfile, and `radweave doctor` in it: docker with an engine, or podman.
DOCKER ?= docker
container:
	$(DOCKER) build --build-arg PIP_OPTIONS='$(TORCH_INDEX)' -t radweave .
	$(DOCKER) run --rm radweave doctor

# The parts list of constraints.txt with the licences of what is installed here, as CycloneDX JSON: deploy/sbom.cdx.json.
# A test says when it is due.
sbom: $(READY)
	$(PYTHON) -m venv build/tools
	build/tools/bin/pip install --quiet cyclonedx-bom==7.5.0
	build/tools/bin/cyclonedx-py requirements --pyproject pyproject.toml --mc-type library --output-reproducible \
	  --of JSON -o build/lock.cdx.json constraints.txt
	build/tools/bin/cyclonedx-py environment --output-reproducible --of JSON -o build/installed.cdx.json $(BIN)/python
	build/tools/bin/python bench/sbom.py build/lock.cdx.json build/installed.cdx.json

clean:
	rm -rf $(VENV) demo
