#!/bin/sh
# Makes .venv ready: `tools/setup.sh run` to serve, `tools/setup.sh dev` to test as well. Called by make.
set -eu
cd "$(dirname "$0")/.."
what=$1
python=${PYTHON:-python3}

say() { echo "setup: $*" >&2; }

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    say "Python 3.11 or newer is needed, and '$python' is not. Name another: make PYTHON=python3.12 ..."
    exit 1
fi

if [ ! -x .venv/bin/pip ]; then
    say "making a virtual environment in .venv"
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

# The servers that the tests start for themselves. Without them their tests skip, and say so.
have() { PATH="$PATH:/usr/sbin:$(echo /usr/lib/postgresql/*/bin | tr ' ' ':')" command -v "$1" >/dev/null; }

missing=""
if [ "$what" = dev ]; then
    have initdb || missing="$missing postgresql"
    have redis-server || missing="$missing redis-server"
    have pgbouncer || missing="$missing pgbouncer"
    have openssl || missing="$missing openssl"
    have kcat || missing="$missing kcat"
    have chromium || missing="$missing chromium"
fi
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing Debian's$missing for the tests; none of it is started"
    export DEBIAN_FRONTEND=noninteractive
    policy=/usr/sbin/policy-rc.d
    made=""
    [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy && made=yes; }
    # shellcheck disable=SC2086 # several words
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends $missing; } >/dev/null 2>&1 ||
        say "that failed: their tests will skip, or fail in CI"
    [ -z "$made" ] || rm -f $policy
elif [ -n "$missing" ]; then
    say "not there, and only root on Debian can install them:$missing. Their tests will skip."
fi

say "installing the pinned packages of constraints.txt into .venv (for '$what')"
extra=""
[ "$what" = dev ] && extra="[dev]"
.venv/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$extra"

# Apache Kafka for the tests, by Maven, which keeps it in its own cache.
if [ "$what" = dev ]; then
    if have mvn && have java; then
        say "fetching Apache Kafka's Maven artifacts for the tests; it is started by them only"
        # shellcheck disable=SC2069 # only errors are worth reading
        mvn -q -B -f tests/support/kafka.pom.xml org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath \
            -Dmdep.outputFile="$PWD/.venv/kafka.classpath" >.venv/kafka.log 2>&1 ||
            say "that failed (see .venv/kafka.log): Kafka's tests will run on librdkafka's own broker, or fail in CI"
    else
        say "no Java or no Maven: Kafka's tests will run on librdkafka's own broker"
    fi
fi
touch ".venv/.$what"
[ "$what" = dev ] && touch .venv/.run
say "done"
