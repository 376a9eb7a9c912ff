"""The limit on open files, which a server raises for its process."""

import subprocess
import sys

ASKS = """
import resource
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
from laurels.server import MAX_FILES, allow_connections
allow_connections()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], min(most, MAX_FILES) if most > 0 else MAX_FILES)
"""


def test_server_raises_its_open_file_limit_to_the_maximum() -> None:
    done = subprocess.run([sys.executable, "-c", ASKS], capture_output=True, text=True, check=True, timeout=60)
    has, may_have = done.stdout.split()
    assert int(has) == int(may_have) > 64
