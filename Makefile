# Everything is done from here; CI runs what you run. `make PYTHON=python3.12 run` chooses another Python.
PYTHON ?= python3
VENV_PYTHON := .venv/bin/python

.PHONY: help install install-dev run demo test test-topology check fix bench messages screenshots
.DEFAULT_GOAL := help

help:
	@echo "make run     the all-in-one on http://127.0.0.1:8080, state in .reach/ (REACH_HOST, REACH_PORT, REACH_HOME)"
	@echo "make demo    the same with sample agents and traffic"
	@echo "make test    all tests; ARGS='-k word' passes options to pytest"
	@echo "make test-topology  the acceptance tests again, every part of the reach a process of its own"
	@echo "make check   lint, format, types, import contract, Dockerfile, migrations, documentation"
	@echo "make fix     lint and format, repaired"
	@echo "make messages     texts that pages show: collected, and their translations compiled"
	@echo "make screenshots  docs/screenshots/, taken anew with the system's Chromium"
	@echo "make bench   cost per call beside nginx, Django and Celery: bench-report/; BASE=commit compares with that commit"

install:
	@$(PYTHON) install.py requirements-client.txt

install-dev:
	@$(PYTHON) install.py requirements-dev.txt

# exec: signals reach the server itself. make hands SIGTERM on and waits; Ctrl-C reaches both.
run: install
	@exec $(VENV_PYTHON) manage.py reach_serve

demo: install
	@exec $(VENV_PYTHON) -m demo

# Some acceptance tests watch the clock: those run one at a time, with the machine to themselves. The others mostly wait.
ACCEPTANCE := $(wildcard tests/acceptance/test_*.py tests/acceptance/incidents/test_*.py)
ALONE := $(addprefix tests/acceptance/,$(addsuffix .py,$(addprefix test_,hostile_bodies kill9 long_jobs node_health \
	overload published_change) incidents/test_half_dead))
TOGETHER := $(addprefix tests/acceptance/,topology demo running sdk) $(filter-out $(ALONE),$(ACCEPTANCE)) \
	tests/browser tests/simulation tests/integration tests/contract tests/unit sdk/tests
test: install-dev
	$(VENV_PYTHON) -m pytest -q -n 3 --dist loadfile $(TOGETHER) $(ARGS)
	$(VENV_PYTHON) -m pytest -q $(ALONE) $(ARGS)

test-topology: install-dev
	REACH_TEST_TOPOLOGY=processes $(VENV_PYTHON) -m pytest -q $(ACCEPTANCE) tests/acceptance/sdk $(ARGS)

check: install-dev
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(VENV_PYTHON) -m mypy
	cd sdk && ../$(VENV_PYTHON) -m mypy
	.venv/bin/lint-imports
	.venv/bin/hadolint Dockerfile
	$(VENV_PYTHON) manage.py makemigrations --check --dry-run
	$(VENV_PYTHON) manage.py reach_configuration --check
	$(VENV_PYTHON) manage.py reach_messages --check

fix: install-dev
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .

bench: install-dev
	$(VENV_PYTHON) -m bench.run $(if $(BASE),--base "$(BASE)") $(ARGS)

messages: install-dev
	$(VENV_PYTHON) manage.py reach_messages

screenshots: install-dev
	$(VENV_PYTHON) docs/screenshots/take.py
