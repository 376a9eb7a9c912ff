"""Events to and from files: JSON lines and CSV, streaming both ways."""

import contextlib
import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

BATCH = 1000
COLUMNS = ["userId", "score", "timestamp", "eventId", "metadata"]
_NUMBER = re.compile(r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$", re.ASCII)

Item = dict[str, Any]
Batch = list[tuple[int, Item]]


class Format(StrEnum):
    NDJSON = "ndjson"
    CSV = "csv"


def guess_format(path: Path | None) -> Format:
    return Format.CSV if path is not None and path.suffix.lower() == ".csv" else Format.NDJSON


@contextlib.contextmanager
def write_events(path: Path | None, file_format: Format) -> Iterator[Callable[[list[Item]], None]]:
    """Gives a function that writes some events."""
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


class Importer:
    """Turns lines into batches and keeps count. `report` is told of every line that can't be used."""

    def __init__(self, run_id: str, report: Callable[[str], None]) -> None:
        self._run_id = run_id
        self._report = report
        self.accepted = self.duplicates = self.refused = 0

    @property
    def done(self) -> int:
        return self.accepted + self.duplicates + self.refused

    @property
    def summary(self) -> str:
        return f"{self.accepted} accepted, {self.duplicates} already there, {self.refused} refused."

    def batches(self, lines: Iterable[str], file_format: Format) -> Iterator[Batch]:
        read = _read_csv if file_format is Format.CSV else _read_ndjson
        batch: Batch = []
        for number, item in read(lines):
            if isinstance(item, str):
                self._refuse(number, item)
                continue
            item.setdefault("eventId", f"import-{self._run_id}-{number}")
            batch.append((number, item))
            if len(batch) == BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    def take(self, batch: Batch, results: list[dict[str, Any]]) -> None:
        """Count what the server said to each item of a batch."""
        for (number, _), result in zip(batch, results, strict=True):
            if result["status"] == "accepted":
                self.accepted += 1
            elif result["status"] == "duplicate":
                self.duplicates += 1
            else:
                self._refuse(number, result["problem"]["detail"])

    def _refuse(self, number: int, reason: str) -> None:
        self.refused += 1
        self._report(f"line {number}: {reason}")


def _read_ndjson(lines: Iterable[str]) -> Iterator[tuple[int, Item | str]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            yield number, f"not JSON: {error}"
        else:
            yield number, value if isinstance(value, dict) else "not a JSON object"


def _read_csv(lines: Iterable[str]) -> Iterator[tuple[int, Item | str]]:
    reader = csv.DictReader(lines)
    names = reader.fieldnames or []
    if "userId" not in names or "score" not in names:
        yield 1, f"the first line must name the columns: {', '.join(COLUMNS)}; the first two are needed"
        return
    for cells in reader:
        yield reader.line_num, _csv_item(cells)


def _csv_item(cells: dict[str | None, Any]) -> Item | str:
    if None in cells:
        return "more cells than columns"
    item: Item = {name: cell for name, cell in cells.items() if name is not None and cell}
    score = item.get("score", "")
    if not _NUMBER.match(score):
        return f"score {score!r} is not a number"
    item["score"] = json.loads(score)
    if "metadata" in item:
        try:
            item["metadata"] = json.loads(item["metadata"], parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            return f"metadata is not JSON: {error}"
    return item


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _line(event: Item) -> str:
    return json.dumps({name: value for name, value in event.items() if value is not None}, ensure_ascii=False) + "\n"


def _cell(event: Item, name: str) -> Any:
    value = event.get(name)
    if name == "metadata" and value is not None:
        return json.dumps(value, ensure_ascii=False)
    return value
