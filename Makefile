# Two commands for a newcomer: `make demo` and `make test`. Each makes .venv and installs what it
# needs; `make quick lint` is a developer's habit.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test exhaustive quick lint typing format horovod install sanitize clean \
	compat compat-oldest compat-newest dist engines libraries docs

demo: horovod
	$(BIN)/dream compare --rounds 1 --strategies mirrored,horovod

# Tests start a thousand processes: what Python compiles is kept for the next one.
export PYTHONDONTWRITEBYTECODE :=

# Rooms of tests run three at a time (many wait rather than compute), those that take longest first;
# each shows its output at its end.
# The contract is one room a framework, so that a cell's ranks start once for all its laws; tests of
# checkpoints are one, so that their ranks have one parent.
LONGEST := contract-keras adapters/keras adapters/pytorch checkpoint adapters/tensorflow \
	contract-torch launch examples tools/verify parameter_server tools/compare strangers contract-cells
checkpoint := checkpoint tools/checkpoint
contract-keras := contract/test_contract_keras*.py
contract-torch := contract/test_contract_torch*.py
contract-cells := contract/test_contract_c*.py contract/test_contract_f*.py
NOT_ROOMS := tests/adapters/ tests/contract/ tests/tools/ tests/__pycache__/
FOUND := $(filter-out $(NOT_ROOMS),$(wildcard tests/*/))
FOUND += $(filter-out tests/tools/checkpoint/,$(wildcard tests/adapters/*/ tests/tools/*/))
FOUND := $(patsubst %/,%,$(FOUND:tests/%=%)) contract-cells
ROOMS := $(LONGEST) $(filter-out $(LONGEST),$(FOUND))
rooms = $(MAKE) --no-print-directory --keep-going --jobs=3 --output-sync=target \
	MARK="$(1)" $(ROOMS:%=room-%)

test: horovod
	@$(call rooms,not exhaustive)

exhaustive: horovod
	@$(call rooms,exhaustive)

# pytest's 5: the room has none that are marked so.
$(ROOMS:%=room-%): room-%:
	@$(BIN)/python -m pytest -m "$(MARK)" $(addprefix tests/,$(or $($*),$*)) || test $$? -eq 5

quick: horovod
	@$(call rooms,not slow and not exhaustive)

# The oldest and the newest versions that pyproject.toml allows. torch's newest comes as a CUDA build
# of gigabytes: `make compat TORCH_OLDEST=2.13.0 TORCH_NEWEST=2.13.0` does without it.
PYTHON_OLDEST ?= python3.11
PYTHON_NEWEST ?= python3.13
TORCH_OLDEST ?= 2.12.*
TORCH_NEWEST ?= 2.15.*
compat: compat-oldest compat-newest

compat-oldest:
	.ci/compat oldest $(PYTHON_OLDEST) "torch==$(TORCH_OLDEST)" "tensorflow-cpu==2.20.*" "keras==3.12.*"

compat-newest:
	.ci/compat newest $(PYTHON_NEWEST) "torch==$(TORCH_NEWEST)" "tensorflow-cpu==2.21.*" "keras==3.15.*"

# What tests/engines start ranks with, from Debian's packages, and Ray and Kubeflow's models from
# PyPI; tests of what is not here are skipped.
engines: $(STAMP)
	apt-get install --yes --no-install-recommends openmpi-bin mpich slurmctld slurmd slurm-client \
		munge openssh-server openssh-client
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		"ray>=2.40" "kubeflow-trainer-api>=2"

# Trackers, loaders and the notebook's kernel from PyPI, at the versions that tests were run with;
# tests of what is not here are skipped.
libraries: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
		-c constraints.txt -e ".[libraries]"

# The site, in build/site. An environment of its own: tests need none of it.
DOCS := build/docs-venv
docs: typing $(DOCS)/.installed
	@rm -rf build/pages && mkdir -p build/pages/benchmarks
	@cp -r README.md CONTRIBUTING.md CHANGELOG.md docs examples build/pages
	@cp -r benchmarks/README.md $(wildcard benchmarks/*.png) build/pages/benchmarks
	@# --quiet would have --strict count no warning
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict

$(DOCS)/.installed: pyproject.toml
	@test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check \
		"mkdocs-material>=9.6,<10" "mkdocstrings[python]>=0.29,<2"
	@touch $@

# sdist and wheel, each installed and used, with a compiler and without.
dist:
	.ci/dist $(PYTHON) -c $(CURDIR)/constraints.txt

lint: $(STAMP) typing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd build/typing && ../../$(BIN)/mypy --config-file ../../pyproject.toml -p dream

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

horovod: $(STAMP)
	@$(BIN)/dream build-horovod

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt $(wildcard native/* native/sockets/*)
	@test -n "$(PYTHON)" || { echo "There is no python3.11 here. Set PYTHON= to a Python 3.11."; exit 1; }
	@test -x $(BIN)/python || { echo "Making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@echo "Installing torch, TensorFlow, Keras and tools into $(VENV) (some minutes the first time)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "setuptools<81" wheel
	@time -p $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation -c constraints.txt -e ".[all-cpu,dev]"
	@touch $@

# mypy finds dream.adapters where an installation would put it.
typing:
	@rm -rf build/typing && mkdir -p build/typing/dream
	@for part in dream/*; do ln -sfn "../../../$$part" "build/typing/$$part"; done
	@ln -sfn ../../../adapters build/typing/dream/adapters

# The native core's stress test: ranks that are threads under the thread sanitizer, ranks that are
# processes under the others.
CORE := $(wildcard native/*.cpp native/*.h) tests/native/stress.cpp
CALLS ?= 10000
sanitize: build/stress-threads build/stress-processes
	@for how in threads processes; do for ranks in 2 3 4; do \
		build/stress-$$how $$how $$ranks $(CALLS) $$ranks || exit 1; \
	done; done

build/stress-threads: SANITIZERS := thread
build/stress-processes: SANITIZERS := address,undefined
build/stress-threads build/stress-processes: $(CORE)
	@mkdir -p build
	$(CXX) -std=c++17 -O1 -g -fsanitize=$(SANITIZERS) -fno-sanitize-recover=all -Wall -Wextra \
		$(filter %.cpp,$(CORE)) -pthread -o $@

clean:
	rm -rf $(VENV) build
