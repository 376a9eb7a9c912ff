"""The spool keeps its order, survives a kill at any byte, and gives each item until it is dropped."""

import asyncio
import errno
import os
import random
import subprocess
import sys
from collections import deque
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laurels.adapters import spool_lane
from laurels.adapters.file_spool import FileSpool
from laurels.errors import Unavailable


async def opened(folder: Path) -> FileSpool:
    spool = FileSpool(folder)
    await spool.open("ledger")
    return spool


def fill_up(room: int, fd: int, data: bytes) -> None:
    os.write(fd, data[:room])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 5)),
            st.tuples(st.just("full"), st.integers(0, 120)),
            st.tuples(st.just("drop"), st.integers(1, 7)),
            st.tuples(st.just("reopen"), st.just(0)),
        ),
        max_size=30,
    )
)
@settings(max_examples=60)
def test_it_is_a_queue_that_survives_its_process(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("spool")

    async def run() -> None:
        spool = await opened(folder)
        model: deque[bytes] = deque()
        number = 0
        for step, count in steps:
            if step == "append":
                items = [f"item {number + each}".encode() * 3 for each in range(count)]
                number += count
                await spool.append(items)
                model.extend(items)
            elif step == "full":
                # So many bytes fit on the disk, which may be whole items.
                full = patch.object(spool_lane, "_write_all", partial(fill_up, count))
                with full, pytest.raises(Unavailable, match="No space left"):
                    await spool.append([b"refused" * 3] * 4)
            elif step == "drop" and model:
                some = await spool.peek(count)
                assert some == list(model)[:count]
                await spool.drop(len(some))
                for _ in some:
                    model.popleft()
            elif step == "reopen":
                await spool.close()
                spool = await opened(folder)
            assert spool.waiting == len(model)
            assert await spool.peek(1000) == list(model)
        await spool.close()

    original, spool_lane.SEGMENT_BYTES = spool_lane.SEGMENT_BYTES, 60
    try:
        asyncio.run(run())
    finally:
        spool_lane.SEGMENT_BYTES = original


def test_what_was_cut_off_is_left_out_and_the_rest_stays(tmp_path: Path) -> None:
    async def fill() -> None:
        spool = await opened(tmp_path)
        for number in range(10):
            await spool.append([b"item %d" % number])
        await spool.close()

    async def read() -> list[bytes]:
        spool = await opened(tmp_path)
        items = await spool.peek(100)
        await spool.append([b"more"])
        assert await spool.peek(100) == [*items, b"more"]
        await spool.close()
        return items

    asyncio.run(fill())
    (segment,) = tmp_path.glob("ledger/lane-*/*.log")
    os.truncate(segment, segment.stat().st_size - 3)
    assert asyncio.run(read()) == [b"item %d" % number for number in range(9)]


def test_a_lane_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    """Killed in the middle of appending: all that it said it had kept is there, in order."""
    program = f"""
import asyncio, itertools, pathlib
from laurels.adapters.file_spool import FileSpool
async def main():
    spool = FileSpool(pathlib.Path({str(tmp_path)!r}))
    await spool.open("ledger")
    for number in itertools.count():
        await spool.append([b"%d" % number])
        print(number, flush=True)
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        kept = -1
        for line in process.stdout:
            kept = int(line)
            if kept > 200 + random.randrange(100):
                process.kill()
                break

    async def read() -> list[bytes]:
        other = await opened(tmp_path)
        items = await other.peek(10_000)
        await other.close()
        return items

    items = asyncio.run(read())
    assert items == [b"%d" % number for number in range(len(items))]
    assert len(items) > kept


def test_two_processes_have_lanes_of_their_own(tmp_path: Path) -> None:
    async def run() -> None:
        first, second = await opened(tmp_path), await opened(tmp_path)
        await first.append([b"first"])
        await second.append([b"second"])
        assert await first.peek(10) == [b"first"]
        assert await second.peek(10) == [b"second"]
        await second.close()
        await first.close()
        third = await opened(tmp_path)
        assert third.waiting == 2
        seen = []
        while some := await third.peek(1):
            seen += some
            await third.drop(1)
        assert sorted(seen) == [b"first", b"second"]
        await third.close()

    asyncio.run(run())


def test_what_is_for_another_ledger_is_left_for_it(tmp_path: Path) -> None:
    async def run() -> None:
        spool = await opened(tmp_path)
        await spool.append([b"for the first"])
        await spool.close()
        other = FileSpool(tmp_path)
        await other.open("another")
        assert (other.waiting, await other.peek(10)) == (0, [])
        await other.close()
        again = await opened(tmp_path)
        assert await again.peek(10) == [b"for the first"]
        await again.close()

    asyncio.run(run())


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_lane, "MAX_BYTES", 100)

    async def run() -> None:
        spool = await opened(tmp_path)
        await spool.append([b"x" * 80])
        with pytest.raises(Unavailable) as caught:
            await spool.append([b"y" * 80])
        assert caught.value.code == "spool_unavailable"
        assert await spool.peek(10) == [b"x" * 80]
        await spool.close()

    asyncio.run(run())


def test_a_folder_that_can_t_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="can't be the spool"):
        asyncio.run(opened(tmp_path / "file"))
