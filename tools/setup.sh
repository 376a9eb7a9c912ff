#!/bin/sh
# Sets up .venv: `tools/setup.sh run` to run the server, `tools/setup.sh dev` to also run the tests. Called by make.
set -eu
cd "$(dirname "$0")/.."
what=$1
python=${PYTHON:-python3}

say() { echo "setup: $*" >&2; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "Python 3.11 or newer is required, but '$python' is older or missing. Name another: make PYTHON=python3.12 ..."
    exit 1
fi

if [ ! -x .venv/bin/pip ]; then
    say "creating a virtual environment in .venv"
    if ! "$python" -m venv --clear .venv >/dev/null 2>&1; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            say "Python's venv module is missing: installing Debian's python3-venv"
            export DEBIAN_FRONTEND=noninteractive
            apt-get -qq update
            apt-get -qq install -y python3-venv >/dev/null 2>&1
            "$python" -m venv --clear .venv
        else
            say "Python's venv module is missing. Install it (on Debian and Ubuntu: python3-venv) and try again."
            exit 1
        fi
    fi
fi

# Programs that the tests start. Tests whose programs are missing are skipped, with a message.
have() { PATH="$PATH:/usr/sbin:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')" command -v "$1" >/dev/null; }

missing=""
if [ "$what" = dev ]; then
    have initdb || missing="$missing postgresql"
    have redis-server || missing="$missing redis-server"
    have pgbouncer || missing="$missing pgbouncer"
    have openssl || missing="$missing openssl"
    have kcat || missing="$missing kcat"
    have chromium || missing="$missing chromium"
    have nginx || missing="$missing nginx-light"
    have caddy || missing="$missing caddy"
fi
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Debian packages for the tests, without starting their services:$missing"
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    made=""
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && made=yes; }
    # shellcheck disable=SC2086 # several words
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends $missing; } >/dev/null 2>&1 ||
        say "installation failed: tests that need these packages are skipped, or fail in CI"
    [ -z "$made" ] || rm -f $policy
elif [ -n "$missing" ]; then
    say "not installed:$missing. Tests that need them are skipped. (This script installs them as root on Debian.)"
fi

pip() { .venv/bin/pip --quiet --disable-pip-version-check "$@"; }
say "installing the packages of requirements.txt into .venv, and checking their hashes"
pip install --require-hashes -r requirements.txt
if [ "$what" = dev ]; then
    say "installing the packages for development, with the versions in constraints.txt"
    pip install -c constraints.txt -e ".[dev]"
else
    pip install --no-deps -e .
fi

# Apache Kafka for the tests. Maven downloads it into its own cache.
if [ "$what" = dev ]; then
    if have mvn && have java; then
        say "downloading Apache Kafka with Maven for the tests"
        # shellcheck disable=SC2069 # only errors are worth reading
        mvn -q -B -f tests/support/kafka.pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath \
            -Dmdep.outputFile="$PWD/.venv/kafka.classpath" >.venv/kafka.log 2>&1 ||
            say "download failed (see .venv/kafka.log): Kafka tests use librdkafka's mock broker, or fail in CI"
    else
        say "Java or Maven is missing: Kafka tests use librdkafka's mock broker"
    fi
fi
touch ".venv/.$what"
[ "$what" = dev ] && touch .venv/.run
say "done"
