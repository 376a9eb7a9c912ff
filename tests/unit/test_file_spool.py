"""The spool keeps its order, survives a kill at any byte, and returns each item until it is dropped."""

import asyncio
import errno
import os
import random
import struct
import subprocess
import sys
import zlib
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laurels.adapters import spool_queue
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
def test_spool_is_a_queue_that_survives_reopening(
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
                # The disk has room for `count` bytes, which may hold whole items.
                full = patch.object(spool_queue, "_write_all", partial(fill_up, count))
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

    original, spool_queue.FILE_BYTES = spool_queue.FILE_BYTES, 60
    try:
        asyncio.run(run())
    finally:
        spool_queue.FILE_BYTES = original


def test_truncated_last_record_is_skipped_and_the_rest_is_kept(tmp_path: Path) -> None:
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
    (segment,) = tmp_path.glob("ledger/queue-*/*.log")
    os.truncate(segment, segment.stat().st_size - 3)
    assert asyncio.run(read()) == [b"item %d" % number for number in range(9)]


def test_queue_of_a_killed_process_is_taken_over(tmp_path: Path) -> None:
    """The process is killed while it appends: all items that it acknowledged are there, in order."""
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


def test_open_spools_in_one_folder_use_separate_queues(tmp_path: Path) -> None:
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


def test_items_of_another_ledger_are_not_returned(tmp_path: Path) -> None:
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


def test_append_beyond_the_maximum_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_queue, "MAX_BYTES", 100)

    async def run() -> None:
        spool = await opened(tmp_path)
        await spool.append([b"x" * 80])
        with pytest.raises(Unavailable) as caught:
            await spool.append([b"y" * 80])
        assert caught.value.code == "spool_unavailable"
        assert await spool.peek(10) == [b"x" * 80]
        await spool.close()

    asyncio.run(run())


def test_unusable_spool_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="can't be used as the spool"):
        asyncio.run(opened(tmp_path / "file"))


def test_failed_folder_sync_refuses_the_append_and_loses_no_items(tmp_path: Path) -> None:
    """The spool begins a new segment while no file descriptor is free."""

    async def run() -> None:
        spool = await opened(tmp_path)
        for number in range(10):
            await spool.append([b"item %d" % number])
        no_more = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        with (
            patch.object(spool_queue, "FILE_BYTES", 1),
            patch.object(spool_queue, "sync_folder", side_effect=no_more),
            pytest.raises(Unavailable, match="Too many open files"),
        ):
            await spool.append([b"refused"])
        for number in range(10, 20):
            await spool.append([b"item %d" % number])
        wanted = [b"item %d" % number for number in range(20)]
        assert await spool.peek(100) == wanted
        await spool.close()
        again = await opened(tmp_path)
        assert (again.waiting, await again.peek(100)) == (20, wanted)
        await again.close()

    asyncio.run(run())


def damage(folder: Path, place: int, numbers: Iterable[int]) -> None:
    """Change one byte in some of ten records of equal length."""
    (segment,) = folder.glob("ledger/queue-*/*.log")
    record = segment.stat().st_size // 10
    with segment.open("r+b") as stream:
        for number in numbers:
            stream.seek(number * record + place)
            stream.write(b"\xff")


@pytest.mark.parametrize("where", ["length", "item", "magic", "all items"])
@pytest.mark.parametrize("reopened", [True, False])
def test_only_damaged_records_are_lost(tmp_path: Path, where: str, reopened: bool) -> None:
    async def run() -> None:
        spool = await opened(tmp_path)
        for number in range(10):
            await spool.append([b"item %d" % number])
        if reopened:
            await spool.close()
        damage(tmp_path, {"magic": 1, "length": 5}.get(where, 13), range(10) if where == "all items" else [4])
        if reopened:
            spool = await opened(tmp_path)
        left = [] if where == "all items" else [number for number in range(10) if number != 4]
        seen: list[bytes] = []
        # Repeated reads reach the end.
        for _ in range(20):
            some = await spool.peek(3)
            seen += some
            await spool.drop(len(some))
        assert seen == [b"item %d" % number for number in left]
        assert (spool.waiting, await spool.peek(3)) == (0, [])
        # A reopened spool can't tell a fully damaged segment from records that were never written.
        assert spool.damaged == 10 - len(left) or (reopened and where == "all items")
        await spool.append([b"after"])
        assert await spool.peek(3) == [b"after"]
        await spool.close()

    asyncio.run(run())


def test_trailing_zeros_after_a_power_failure_are_ignored(tmp_path: Path) -> None:
    async def fill() -> None:
        spool = await opened(tmp_path)
        await spool.append([b"kept"])
        await spool.close()

    async def read() -> tuple[int, list[bytes]]:
        spool = await opened(tmp_path)
        found = spool.waiting, await spool.peek(1000)
        await spool.close()
        return found

    asyncio.run(fill())
    (segment,) = tmp_path.glob("ledger/queue-*/*.log")
    with segment.open("ab") as stream:
        stream.write(bytes(4096))
    assert asyncio.run(read()) == (1, [b"kept"])


def test_records_in_the_older_format_are_read(tmp_path: Path) -> None:
    queue = tmp_path / "ledger" / "queue-000"
    queue.mkdir(parents=True)
    items = [b"first", b"second"]
    (queue / "00000001.log").write_bytes(b"".join(struct.pack(">II", len(i), zlib.crc32(i)) + i for i in items))

    async def run() -> None:
        spool = await opened(tmp_path)
        await spool.append([b"third"])
        assert await spool.peek(10) == [*items, b"third"]
        await spool.close()

    asyncio.run(run())


def test_items_set_aside_are_visible_to_all_and_replayed_on_request(tmp_path: Path) -> None:
    async def run() -> None:
        first, second = await opened(tmp_path), await opened(tmp_path)
        await second.append([b"a", b"b", b"c"])
        assert await second.peek(2) == [b"a", b"b"]
        await second.set_aside([b"a"])
        await second.drop(2)
        assert (second.waiting, second.put_aside, await first.aside()) == (1, 1, [b"a"])
        # No replay was requested.
        await second.replay_aside()
        assert second.put_aside == 1
        await first.ask_replay()
        await first.replay_aside()
        await second.replay_aside()
        assert (second.waiting, second.put_aside, await first.aside()) == (2, 0, [])
        assert await second.peek(9) == [b"c", b"a"]
        await second.set_aside([b"d"])
        await second.close()
        await first.close()
        # Items set aside survive the process.
        third = await opened(tmp_path)
        assert (third.put_aside, await third.aside()) == (1, [b"d"])
        await third.close()

    asyncio.run(run())
