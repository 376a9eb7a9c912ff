# Every target sets up what it needs in a fresh clone; the second time there is nothing left to do.
.DEFAULT_GOAL := help
SETUP := pyproject.toml constraints.txt tools/setup.sh tests/support/kafka.pom.xml
PYTHON ?= python3
export PYTHON

.PHONY: help serve demo test check format bench pictures faults clean

help:
	@echo "make serve   start the server on the embedded default: http://127.0.0.1:8080"
	@echo "make demo    the server with simulated players, so that the page moves"
	@echo "make test    run the tests"
	@echo "make check   formatting, lint, types"
	@echo "make format  put the formatting right"
	@echo "make faults  kill, freeze, flush and set back servers, PostgreSQL, Redis and Kafka 800 times under load (over an hour)"
	@echo "make pictures  the README's pictures of the page"
	@echo "make bench   measure one million users: embedded, then on PostgreSQL and Redis"

serve: .venv/.run
	@.venv/bin/laurels serve

demo: .venv/.run
	@.venv/bin/laurels simulate --duration 0 --data-dir laurels-demo

test: .venv/.dev
	.venv/bin/pytest

check: .venv/.dev
	.venv/bin/ruff format --check
	.venv/bin/ruff check
	.venv/bin/mypy

format: .venv/.dev
	.venv/bin/ruff check --fix --quiet || true
	.venv/bin/ruff format

bench: .venv/.dev
	.venv/bin/python bench/embedded.py
	PYTHONPATH=tests .venv/bin/python bench/shared.py
	PYTHONPATH=tests .venv/bin/python bench/freeze.py
	PYTHONPATH=tests .venv/bin/python bench/void.py
	PYTHONPATH=tests .venv/bin/python bench/ingest.py
	PYTHONPATH=tests .venv/bin/python bench/live.py

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
