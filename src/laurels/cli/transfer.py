"""Export and import of events as JSON lines or CSV, streaming in both directions."""

import contextlib
import csv
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

BATCH_ITEMS = 1000
BATCH_BYTES = 4 * 1024 * 1024
LINE_BYTES = 64 * 1024
COLUMNS = ["userId", "score", "subscore", "operation", "timestamp", "eventId", "metadata", "stamped"]
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
# What a spreadsheet takes for a formula, after any number of apostrophes.
_FORMULA = re.compile(r"'*[=+\-@]")

Item = dict[str, Any]


class Format(StrEnum):
    NDJSON = "ndjson"
    CSV = "csv"


def guess_format(path: Path | None) -> Format:
    return Format.CSV if path is not None and path.suffix.lower() == ".csv" else Format.NDJSON


@contextlib.contextmanager
def write_events(path: Path | None, file_format: Format) -> Iterator[Callable[[list[Item]], None]]:
    """Open a file, or standard output, and yield a function that writes events to it."""
    with contextlib.ExitStack() as stack:
        stream = sys.stdout
        if path is not None:
            stream = stack.enter_context(path.open("w", encoding="utf-8", newline=""))
        if file_format is Format.CSV:
            writer = csv.writer(stream)
            writer.writerow(COLUMNS)
            yield lambda events: writer.writerows([_cell(event, name) for name in COLUMNS] for event in events)
        else:
            yield lambda events: stream.writelines(_line(event) for event in events)
        stream.flush()


class Batch(NamedTuple):
    """Encoded items, and the line number of each."""

    numbers: list[int]
    items: list[bytes]

    @property
    def body(self) -> bytes:
        return b'{"scores":[' + b",".join(self.items) + b"]}"


class Importer:
    """Conversion of lines into batches, with a count of the results.

    `report` is called with a message for every line that can't be imported.
    """

    def __init__(self, run_id: str, report: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._report = report
        self.accepted = self.spooled = self.duplicates = self.in_review = self.refused = 0
        # By window: the number of events that do not count in it because their period is closed.
        self._late: Counter[str] = Counter()

    @property
    def done(self) -> int:
        return self.accepted + self.spooled + self.duplicates + self.in_review + self.refused

    @property
    def summary(self) -> str:
        kept = f"{self.spooled} spooled until the ledger is reachable, " if self.spooled else ""
        kept += f"{self.in_review} waiting for a moderator, " if self.in_review else ""
        late = "".join(f" {count} came too late for the window {window}." for window, count in self._late.items())
        return f"{self.accepted} accepted, {kept}{self.duplicates} already there, {self.refused} refused.{late}"

    def batches(self, stream: BinaryIO, file_format: Format) -> Iterator[Batch]:
        lines = _Lines(stream, self._refuse)
        read = _read_csv if file_format is Format.CSV else _read_ndjson
        batch, size = Batch([], []), 0
        for number, item in read(lines):
            encoded = item if isinstance(item, str) else self._encode(number, item)
            if isinstance(encoded, str):
                self._refuse(number, encoded)
                continue
            if len(batch.items) == BATCH_ITEMS or size + len(encoded) > BATCH_BYTES:
                yield batch
                batch, size = Batch([], []), 0
            batch.numbers.append(number)
            batch.items.append(encoded)
            size += len(encoded) + 1
        if batch.items:
            yield batch

    def take(self, batch: Batch, results: list[dict[str, Any]]) -> None:
        """Count the server's results for the items of a batch."""
        for number, result in zip(batch.numbers, results, strict=True):
            if result["status"] == "accepted":
                self.accepted += 1
                self._late.update(result["lateWindows"])
            elif result["status"] == "spooled":
                self.spooled += 1
            elif result["status"] == "duplicate":
                self.duplicates += 1
            elif result["status"] == "in_review":
                self.in_review += 1
            else:
                self._refuse(number, result["problem"]["detail"])

    def _encode(self, number: int, item: Item) -> bytes | str:
        """Return the item as JSON bytes, or the reason why it can't be sent."""
        if item.get("eventId") is None:
            item["eventId"] = f"import-{self._run_id}-{number}"
        try:
            return json.dumps(item, ensure_ascii=False, allow_nan=False).encode()
        except UnicodeEncodeError:
            return "a string contains half of a surrogate pair"
        except (ValueError, RecursionError) as error:
            return f"can't be encoded as JSON: {error}"

    def _refuse(self, number: int, reason: str) -> None:
        self.refused += 1
        self._report(f"line {number}: {reason}")


class _Lines:
    """Lines of UTF-8 text, without those that are too long or not UTF-8, which are refused."""

    def __init__(self, stream: BinaryIO, refuse: Callable[[int, str], None]) -> None:
        self._stream = stream
        self._refuse = refuse
        self.number = 0

    def __iter__(self) -> Iterator[str]:
        while line := self._stream.readline(LINE_BYTES + 1):
            self.number += 1
            if len(line) > LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = self._stream.readline(LINE_BYTES)
                self._refuse(self.number, f"longer than {LINE_BYTES} bytes")
                continue
            try:
                # Excel starts its files with a byte order mark.
                yield line.decode("utf-8-sig" if self.number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                self._refuse(self.number, f"not UTF-8: {error.reason} at byte {error.start}")


def _read_ndjson(lines: _Lines) -> Iterator[tuple[int, Item | str]]:
    for line in lines:
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            yield lines.number, f"not JSON: {error}"
        else:
            yield lines.number, value if isinstance(value, dict) else "not a JSON object"


def _read_csv(lines: _Lines) -> Iterator[tuple[int, Item | str]]:
    reader = csv.DictReader(lines)
    names = reader.fieldnames or []
    if "userId" not in names or "score" not in names:
        yield 1, f"the first line must name the columns: {', '.join(COLUMNS)}; userId and score are required"
        return
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield lines.number, f"not CSV: {error}"
        else:
            yield lines.number, _csv_item(cells)


def _csv_item(cells: dict[str | None, Any]) -> Item | str:
    if None in cells:
        return "more cells than columns"
    item: Item = {
        name: cell[1:] if cell[0] == "'" and _FORMULA.match(cell[1:]) else cell
        for name, cell in cells.items()
        if name is not None and cell
    }
    score = item.get("score", "")
    if not _NUMBER.fullmatch(score):
        return f"score {score!r} is not a number"
    stamped = item.pop("stamped", "")
    if stamped not in {"", "true"}:
        return f"stamped is {stamped!r}: it must be true or empty"
    if stamped:
        item["stamped"] = True
    try:
        item["score"] = json.loads(score)
        if "subscore" in item:
            item["subscore"] = json.loads(item["subscore"])
        if "metadata" in item:
            item["metadata"] = json.loads(item["metadata"], parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {error}"
    return item


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _line(event: Item) -> str:
    kept = {name: value for name in COLUMNS if (value := event.get(name)) is not None and value is not False}
    return json.dumps(kept, ensure_ascii=False) + "\n"


def _cell(event: Item, name: str) -> Any:
    value = event.get(name)
    if name == "metadata" and value is not None:
        return json.dumps(value, ensure_ascii=False)
    if name == "stamped":
        return "true" if value else ""
    # A spreadsheet would run a text like "=1+1" as a formula. The apostrophe makes it a text; an import removes it.
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value
