# make plan   install, then plan DeepSeek-V3 on 384 cards of CloudMatrix 384
# make test   install, then run every test

PYTHON  ?= python3
WORKERS ?= 3
EXAMPLE ?= examples/deepseek_v3_cloudmatrix_384.yaml
UV      ?= uv

# Git directories of the frameworks, for `make flags`.
MEGATRON      ?=
MINDSPEED     ?=
MINDSPEED_LLM ?=
MINDFORMERS   ?=
VERL          ?=
TORCHTITAN     ?=
TORCHTITAN_NPU ?=
MINDSPEED_RL  ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
READY := $(VENV)/.ready
TYPED := autodeploy api cost_models hardware_profiles docs

# Where it is set, every process would compile every module it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install plan serve test coverage bench soak recommended processor-time replay scale stability freeze wheelhouse calibrate accuracy generation rl published backtest scoreboard flags conformance docs check format lock clean
.PHONY: check_format check_lint check_types check_imports check_spelling check_sizes check_ratchet

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv and install the locked packages

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; try: make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	@echo "Making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# READY: all that running needs. STAMP: all that developing needs, and so READY too.
$(READY): requirements.lock pyproject.toml .ci/install.py | $(BIN)/python
	@$(BIN)/python .ci/install.py runtime
	@touch $@

$(STAMP): requirements.lock pyproject.toml .ci/install.py | $(BIN)/python
	@$(BIN)/python .ci/install.py
	@touch $(READY) $@

plan: $(READY) ## Plan the example and print the report
	@$(BIN)/autodeploy db upgrade
	@$(BIN)/autodeploy plan $(EXAMPLE)
	@command -v autodeploy > /dev/null || echo "autodeploy is in $(BIN): source $(BIN)/activate"

serve: $(READY) ## Serve the API and the pages
	@$(BIN)/autodeploy db upgrade
	@$(BIN)/autodeploy serve

# Three workers on two cores: the tests of integration and pages wait for half of their time. In the order of the files
# the small ones come last, and the workers end together.
test: $(STAMP) ## Run the tests; AUTODEPLOY_REQUIRE_ALL=1 turns skips into failures
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadscope --no-loadscope-reorder

TESTS ?= tests

# In one process, and of that one alone: noting lines in every server that is started takes too long.
coverage: $(STAMP) ## Run the tests in one process, list what none reaches; TESTS=tests/unit for a part
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest -q $(TESTS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --skip-covered --show-missing

bench: $(STAMP) ## Run the benchmarks, alone on the machine
	@$(BIN)/python -m tests.benchmarks
	@$(BIN)/python -m tests.benchmarks.stored_searches
	@AUTODEPLOY_TIMED=1 $(BIN)/python -m pytest -q tests/ui/test_page_speed.py

# With torch, in an environment of its own inside the first: nothing else needs it. TORCH_PYTHON= names another.
TORCH_PYTHON ?= $(VENV)/probe/bin/python

$(VENV)/probe/bin/python: | $(STAMP)
	@$(PYTHON) -m venv $(VENV)/probe
	@$@ .ci/install.py probe

soak: $(STAMP) $(TORCH_PYTHON) ## Run many faults, much load, bad input, a large database and real training; one JSON line a figure
	@$(BIN)/python -m tests.soak
	@$(BIN)/python -m tests.soak.neighbours
	@$(BIN)/python -m tests.soak.greedy
	@$(BIN)/python -m tests.soak.real_training --python $(TORCH_PYTHON)

processor-time: $(STAMP) ## Processor time and memory of plans over a fixed loop; TREE= WRITE= AGAINST= of an earlier tree
	@$(BIN)/python -m tests.benchmarks.processor_time $(if $(TREE),--tree $(TREE)) $(if $(WRITE),--write $(WRITE)) \
		$(if $(AGAINST),--against $(AGAINST))

recommended: $(STAMP) ## Hold what is recommended to searches with less freedom and to measured strategies; one JSON line each
	@$(BIN)/python -m tests.soak.recommended
	@$(BIN)/python -m tests.soak.measured_strategies

replay: $(STAMP) ## Fit to runs on few cards and predict those on more; docs/replay.md
	@$(BIN)/python -m docs.replay

scale: $(STAMP) ## Compare runs on 1,024 cards and more with those on few; docs/scale.md
	@$(BIN)/python -m docs.scale

stability: $(STAMP) ## Search twelve specs again wherever their uncertain numbers may be, about an hour; docs/stability.md
	@$(BIN)/python -m docs.stability

freeze: $(STAMP) ## Search forty specs without a time limit and hold the PlanSets to their digests; an hour
	@$(BIN)/python -m tests.freeze

wheelhouse: $(STAMP) ## Gather wheels for an install without a network; MACHINE=aarch64 for another machine
	@$(BIN)/python .ci/wheelhouse.py wheelhouse$(if $(MACHINE),-$(MACHINE) --machine $(MACHINE))

calibrate: $(STAMP) ## Fit the shipped efficiencies to the shipped records again
	@$(BIN)/python -m autodeploy.calibration.shipped

accuracy: $(STAMP) ## Make docs/accuracy.md anew from the shipped records
	@$(BIN)/python -m docs.accuracy

generation: $(STAMP) ## Fit the numbers of generation anew, and make docs/generation_accuracy.md
	@$(BIN)/python -m docs.generation_accuracy

rl: $(STAMP) ## Make docs/rl_accuracy.md anew from the measured steps of post-training, a few minutes
	@$(BIN)/python -m docs.rl_accuracy

published: $(STAMP) ## Make docs/published_effects.md and the systems' table of the READMEs anew, two minutes
	@$(BIN)/python -m docs.published_effects

backtest: $(STAMP) ## Make docs/backtest.md anew: strategies chosen among measured runs, and what it cost
	@$(BIN)/python -m docs.backtest

scoreboard: $(STAMP) ## Hold every figure of accuracy against its aim, by fits made on the spot
	@$(BIN)/python -m docs.scoreboard

flags: $(STAMP) ## Make the tables of registered flags anew; MEGATRON= MINDSPEED= MINDSPEED_LLM= MINDFORMERS= VERL= MINDSPEED_RL= git directories
	@$(BIN)/python -m tests.launch_check.flag_tables $(if $(MEGATRON),--megatron $(MEGATRON)) \
		$(if $(MINDSPEED),--mindspeed $(MINDSPEED)) $(if $(MINDSPEED_LLM),--mindspeed-llm $(MINDSPEED_LLM)) \
		$(if $(MINDFORMERS),--mindformers $(MINDFORMERS)) \
		$(if $(TORCHTITAN),--torchtitan $(TORCHTITAN)) $(if $(TORCHTITAN_NPU),--torchtitan-npu $(TORCHTITAN_NPU)) \
		$(if $(VERL),--verl $(VERL)) $(if $(MINDSPEED_RL),--mindspeed-rl $(MINDSPEED_RL))

CONFORMANCE_TREES ?= trees
CONFORMANCE_PYTHON ?= $(TORCH_PYTHON)
# Of an environment with torchtitan 0.3 and torch for the CPU: steps FSDP2 plans too.
TITAN_PYTHON ?=

conformance: $(STAMP) ## Run tests/witness/plans.yaml by the frameworks on the CPU and record; CONFORMANCE_TREES= one folder a release
	@$(BIN)/python -m tests.witness --trees $(CONFORMANCE_TREES) --python $(CONFORMANCE_PYTHON) $(PLANS)
	@$(BIN)/python -m tests.witness.operators --trees $(CONFORMANCE_TREES) --python $(CONFORMANCE_PYTHON)
	$(if $(TITAN_PYTHON),@$(BIN)/python -m tests.witness.titan --python $(TITAN_PYTHON))

docs: $(STAMP) ## Regenerate the reference pages, figures, NOTICE and the numbers of the README
	@$(BIN)/python -m docs.generate
	@$(BIN)/python -m docs.readme
	@$(BIN)/python -m docs.notice

check: check_format check_lint check_types check_imports check_spelling check_sizes check_ratchet ## Check all that can be read off the code

check_format: $(STAMP)
	$(BIN)/ruff format --check --output-format concise .
check_lint: $(STAMP)
	$(BIN)/ruff check --output-format concise .
check_types: $(STAMP)
	$(BIN)/mypy $(TYPED)
check_imports: $(STAMP)
	$(BIN)/lint-imports --no-logo
check_spelling: $(STAMP)
	$(BIN)/codespell
check_sizes: $(STAMP)
	$(BIN)/python .ci/file_sizes.py
check_ratchet: $(STAMP)
	$(BIN)/python .ci/ratchet.py

format: $(STAMP) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One lock for x86-64 and aarch64, hashed, without addresses, with every extra but `probe`: torch's builds differ by index
# and machine, and only `make soak` needs one. Needs uv; nothing else here does.
lock: ## Make requirements.lock anew from pyproject.toml
	$(UV) pip compile --quiet --universal --extra postgres --extra dev --generate-hashes --no-header --no-emit-index-url \
		pyproject.toml --output-file requirements.lock

clean: ## Remove caches and build output; .venv and databases stay
	rm -rf .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist htmlcov
