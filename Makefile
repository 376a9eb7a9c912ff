# Every target also works in a fresh clone: it installs what it needs, and only once.
.DEFAULT_GOAL := help
SETUP := pyproject.toml constraints.txt tools/setup.sh tests/support/kafka.pom.xml
PYTHON ?= python3
export PYTHON

.PHONY: help serve demo test test-fast check format docs bench pictures faults clean

help:
	@echo "make serve     start the server in embedded mode: http://127.0.0.1:8080"
	@echo "make demo      start the server with simulated players, to see live updates on the page"
	@echo "make test      run all tests, in parallel"
	@echo "make test-fast run the tests that need no other servers (under two minutes)"
	@echo "make check     check formatting, lint and types"
	@echo "make format    format the code, and fix lint errors that can be fixed automatically"
	@echo "make docs      write the tables in docs/ that derive from the code"
	@echo "make faults    kill, freeze, flush and roll back servers, PostgreSQL, Redis and Kafka 800 times under load (over an hour)"
	@echo "make pictures  take the README's screenshots of the page"
	@echo "make bench     run all benchmarks, with up to one million users"

serve: .venv/.run
	@.venv/bin/laurels serve

demo: .venv/.run
	@.venv/bin/laurels simulate --duration 0 --data-dir laurels-demo

test: .venv/.dev
	.venv/bin/pytest -n auto --dist worksteal

test-fast: .venv/.dev
	.venv/bin/pytest -n auto --dist worksteal --fast

check: .venv/.dev
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy

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

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

.venv/.run: $(SETUP)
	@tools/setup.sh run

.venv/.dev: $(SETUP)
	@tools/setup.sh dev
