# Every target also works in a fresh clone: it installs what it needs, and only once.
.DEFAULT_GOAL := help
SETUP := pyproject.toml constraints.txt requirements.txt tools/setup.sh tests/support/kafka.pom.xml
PYTHON ?= python3
export PYTHON

.PHONY: help serve demo test test-fast check format docs bench pictures faults soak pins audit clean

help:
	@echo "make serve     start the server in embedded mode: http://127.0.0.1:8080"
	@echo "make demo      start the server with simulated players, to see live updates on the page"
	@echo "make test      run all tests, in parallel"
	@echo "make test-fast run the tests that need no other servers (under two minutes)"
	@echo "make check     check formatting, lint, types and the licences of dependencies, and write build/sbom.json"
	@echo "make format    format the code, and fix lint errors that can be fixed automatically"
	@echo "make docs      write the tables in docs/ that derive from the code"
	@echo "make faults    kill, freeze, flush and roll back servers, PostgreSQL, Redis and Kafka 800 times under load (over an hour)"
	@echo "make pictures  take the README's screenshots of the page"
	@echo "make pins      write requirements.txt: the versions and hashes of what the server needs"
	@echo "make audit     look the dependencies up in the database of known vulnerabilities (needs access to pypi.org)"
	@echo "make soak      run servers under load and faults for an hour, and check memory, files and data"
	@echo "make bench     run all benchmarks, with up to one million users"

serve: .venv/.run
	@.venv/bin/laurels serve

demo: .venv/.run
	@.venv/bin/laurels simulate --duration 0 --data-dir laurels-demo

test: .venv/.dev
	.venv/bin/pytest -n auto --dist worksteal

test-fast: .venv/.dev
	.venv/bin/pytest -n auto --dist worksteal --fast

check: .venv/.dev build/sbom.json
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy

build/sbom.json: requirements.txt pyproject.toml tools/supply.sh | .venv/.dev
	@tools/supply.sh

pins: .venv/.dev
	.venv/bin/uv pip compile pyproject.toml --universal --generate-hashes -c constraints.txt \
	    --no-emit-index-url --no-annotate --custom-compile-command "make pins" --quiet -o requirements.txt

audit: .venv/.dev
	.venv/bin/pip-audit -r requirements.txt --require-hashes --disable-pip

format: .venv/.dev
	.venv/bin/ruff check --fix --quiet || true
	.venv/bin/ruff format

bench: .venv/.dev
	.venv/bin/laurels bench calls sizes mixed boards
	.venv/bin/python bench/embedded.py
	PYTHONPATH=tests .venv/bin/python bench/shared.py
	PYTHONPATH=tests .venv/bin/python bench/freeze.py
	PYTHONPATH=tests .venv/bin/python bench/void.py
	PYTHONPATH=tests .venv/bin/python bench/ingest.py
	PYTHONPATH=tests .venv/bin/python bench/live.py
	PYTHONPATH=tests .venv/bin/python bench/overload.py
	PYTHONPATH=tests .venv/bin/python bench/fairness.py

docs: .venv/.dev
	.venv/bin/python tools/docs.py

pictures: .venv/.dev
	LAURELS_PICTURES=docs/images .venv/bin/pytest tests/page/test_pictures.py

faults: .venv/.dev
	LAURELS_TEST_FAULTS=200 .venv/bin/pytest -s tests/faults/test_shared_stores.py tests/faults/test_lost_data.py tests/faults/test_kafka.py

SECONDS ?= 3600
soak: .venv/.dev
	LAURELS_TEST_SOAK=$(SECONDS) .venv/bin/pytest -s --timeout=0 tests/faults/test_soak.py

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.run: $(SETUP)
	@tools/setup.sh run

.venv/.dev: $(SETUP)
	@tools/setup.sh dev
