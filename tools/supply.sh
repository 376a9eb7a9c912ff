#!/bin/sh
# Checks what the server depends on: installs exactly requirements.txt, with its hashes, into build/runtime, checks the
# licences, and writes the software bill of materials (CycloneDX) to build/sbom.json. Called by make.
set -eu
cd "$(dirname "$0")/.."

say() { echo "supply: $*" >&2; }

# Licences that an Apache-2.0 program may depend on, as the packages name them. MPL-2.0 covers only the files of certifi.
ALLOWED="Apache-2.0;Apache Software License;Apache-2.0 OR BSD-3-Clause;Apache-2.0 AND BSD-2-Clause;MIT;MIT License;MIT-0"
ALLOWED="$ALLOWED;BSD License;BSD-2-Clause;BSD-3-Clause;PSF-2.0;Mozilla Public License 2.0 (MPL 2.0)"
ALLOWED="$ALLOWED;ISC License (ISCL);MIT OR Apache-2.0;MIT License; Apache Software License;Apache Software License; MIT License"

rm -rf build/runtime
say "installing requirements.txt with its hashes into build/runtime"
.venv/bin/python -m venv build/runtime
build/runtime/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.txt
build/runtime/bin/pip check --disable-pip-version-check >&2
build/runtime/bin/pip uninstall --quiet --disable-pip-version-check --yes setuptools pip
say "checking the licences"
.venv/bin/pip-licenses --python build/runtime/bin/python --from mixed --format=json --allow-only "$ALLOWED" >build/licences.json
say "writing build/sbom.json"
.venv/bin/cyclonedx-py environment build/runtime --pyproject pyproject.toml --output-reproducible --validate \
    -o build/sbom.json 2>/dev/null
