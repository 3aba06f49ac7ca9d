# make demo    build the models, start the server, load it for a minute, give a verdict
# make serve   build the models, configure the server and keep it up
# make test    run all tests          make check   format, lint, types
#
# Each target makes .venv and installs what it needs; stamps let later runs skip that.
# TORCH_SPEC says which torch; TORCH_INDEX where it comes from. Where the default index holds CUDA builds of several
# gigabytes, `make TORCH_INDEX=<URL of PyTorch's CPU index> demo` gets the small one.

TORCH_SPEC ?= torch==2.13.0
TORCH_INDEX ?=

VENV := .venv
BIN := $(VENV)/bin
# numpy < 2 is what the Python stub of the embedded server needs; naming it and torch every time keeps both in place.
PINS := '$(TORCH_SPEC)' 'numpy<2'
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install

.PHONY: demo serve test check
.DELETE_ON_ERROR:

demo: $(VENV)/.run
	$(BIN)/gapless demo sla/demo.yaml

serve: $(VENV)/.run
	$(BIN)/gapless build --sla sla/demo.yaml --profile
	$(BIN)/gapless generate sla/demo.yaml
	$(BIN)/gapless serve

test: $(VENV)/.dev $(VENV)/.prometheus $(VENV)/.chromium
	$(BIN)/python -m pytest

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict decode engines loadtest gapless observe config_gen builders

$(VENV)/.made: scripts/make-venv.sh
	@scripts/make-venv.sh $(VENV)
	@touch $@

$(VENV)/.run: pyproject.toml $(VENV)/.made
	@echo "installing gapless into $(VENV) (the first time takes minutes)"
	$(PIP) $(if $(TORCH_INDEX),--index-url '$(TORCH_INDEX)') $(PINS)
	$(PIP) $(PINS) --editable '.[serve,embedded,loadtest,build,observe]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.run
	@echo "installing what tests and checks need"
	$(PIP) $(PINS) --editable '.[dev]'
	@touch $@

$(VENV)/.prometheus: scripts/get-prometheus.sh $(VENV)/.made
	@scripts/get-prometheus.sh $(BIN)
	@touch $@

$(VENV)/.chromium: scripts/get-chromium.sh $(VENV)/.made
	@scripts/get-chromium.sh $(BIN)
	@touch $@
