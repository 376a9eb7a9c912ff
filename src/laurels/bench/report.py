"""The results of `laurels bench` as text, JSON and Markdown with plots."""

import os
import platform
import sqlite3
import sys
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

from laurels import __version__
from laurels.bench.sides import Options
from laurels.bench.suites import Row
from laurels.errors import Invalid

BEGIN = "<!-- laurels bench: begin -->"
END = "<!-- laurels bench: end -->"
TITLES = {
    "calls": "Calls beside the baselines",
    "sizes": "A million users beside ten thousand",
    "mixed": "Response times under a given load",
    "boards": "Many boards beside one",
}
WHAT = {
    "top": "GET top, 10 rows",
    "rank": "GET rank",
    "around": "GET around, ±4",
    "put": "PUT score",
    "batch": "POST scores, 1,000 per call",
}


def facts(command: list[str], options: Options) -> dict[str, str]:
    """Return what a reader needs to judge or repeat the run."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("uvicorn", "uvloop", "httptools", "asyncpg", "redis"))
    return {
        "command": " ".join(["laurels", *command]),
        "machine": f"{os.cpu_count()} cores, {platform.system()}, shared by all servers and the client",
        "versions": ", ".join(
            [
                f"Laurels {__version__}",
                f"Python {platform.python_version()}",
                f"SQLite {sqlite3.sqlite_version}",
                packages,
            ]
        ),
        "load": f"{options.users:,} users with ids of 24 characters, {options.connections} connections, "
        f"{options.rounds} rounds of {options.seconds:g} s per call, in turn "
        "(batches: 4 connections; mixed: 256; sizes and boards: the users of their rows)",
        "figures": "medians of the rounds, with the lowest and the highest; compare the ratios, not the rates",
    }


def to_json(told: dict[str, str], rows: list[Row]) -> dict[str, Any]:
    return told | {
        "rows": [
            {
                "suite": row.suite,
                "what": row.what,
                "side": row.side,
                "unit": row.unit,
                "median": row.median,
                "values": row.values,
                "durability": row.durability,
                "ratios": row.ratios,
            }
            for row in rows
        ]
    }


def to_text(told: dict[str, str], rows: list[Row]) -> str:
    lines = [f"{name:12}{value}" for name, value in told.items()]
    for suite, what in dict.fromkeys((row.suite, row.what) for row in rows):
        lines += ["", f"{WHAT.get(what, what)}"]
        lines += [
            f"  {row.side:28}{row.median:>10,.0f} ({min(row.values):,.0f} to {max(row.values):,.0f}) {row.unit:11}"
            f"{_ratios(row):44} {row.durability}".rstrip()
            for row in rows
            if (row.suite, row.what) == (suite, what)
        ]
    return "\n".join(lines)


def _ratios(row: Row) -> str:
    return "; ".join(f"{ratio:.2f} of {name}" for name, ratio in row.ratios.items())


def write_docs(page: Path, told: dict[str, str], rows: list[Row]) -> None:
    """Replace the part of a Markdown page between two comments, and write the plots beside it, into `images`."""
    text = page.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise Invalid("wrong_format", f"{page} must contain the lines {BEGIN} and {END} once each.", field="--docs")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    parts = ["```", *(f"{name:12}{value}" for name, value in told.items()), "```", ""]
    for suite in dict.fromkeys(row.suite for row in rows):
        parts += [f"### {TITLES[suite]}", ""]
        for what in dict.fromkeys(row.what for row in rows if row.suite == suite):
            own = [row for row in rows if (row.suite, row.what) == (suite, what)]
            parts += _table(what, own)
            if suite == "calls":
                picture = page.parent / "images" / f"bench-{what}.svg"
                picture.parent.mkdir(exist_ok=True)
                picture.write_text(to_svg(WHAT[what], own), "utf-8")
                parts += [f"![{WHAT[what]}: {own[0].unit}](images/{picture.name})", ""]
    page.write_text(f"{before}{BEGIN}\n{chr(10).join(parts)}{END}{after}", "utf-8")


def _table(what: str, rows: list[Row]) -> list[str]:
    unit = rows[0].unit.partition(",")[0]
    return [
        f"| {WHAT.get(what, what)} | {unit} | lowest to highest | ratio | stored before the answer |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {row.side} | {row.median:,.0f}{_verdict(row)} | {min(row.values):,.0f} to {max(row.values):,.0f} "
            f"| {_ratios(row)} | {row.durability} |"
            for row in rows
        ),
        "",
    ]


def _verdict(row: Row) -> str:
    _, _, verdict = row.unit.partition(", ")
    return f" ({verdict})" if verdict else ""


ROW_HEIGHT = 26
LABEL_WIDTH = 210
BAR_WIDTH = 400


def to_svg(title: str, rows: list[Row]) -> str:
    """Return a bar chart: a bar per side, with a line from the lowest to the highest round."""
    top = max(max(row.values) for row in rows)
    height = ROW_HEIGHT * (len(rows) + 1) + 12
    width = LABEL_WIDTH + BAR_WIDTH + 90
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = f'role="img" aria-label="{escape(title)}, {escape(rows[0].unit)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13" {label}>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="8" y="20" font-weight="bold">{escape(title)}, {escape(rows[0].unit)}</text>',
    ]
    for number, row in enumerate(rows, 1):
        y = ROW_HEIGHT * number + 8
        low, middle, high = (value / top * BAR_WIDTH for value in (min(row.values), row.median, max(row.values)))
        colour = "#2f6f4f" if row.side.startswith("Laurels") else "#9aa5ae"
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{y + 14}" text-anchor="end">{escape(row.side)}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{middle:.1f}" height="{ROW_HEIGHT - 8}" fill="{colour}"/>',
            f'<path d="M{LABEL_WIDTH + low:.1f} {y + 9}H{LABEL_WIDTH + high:.1f}" stroke="#222"/>',
            f'<text x="{LABEL_WIDTH + high + 8:.1f}" y="{y + 14}">{row.median:,.0f}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def own_command() -> list[str]:
    """Return the arguments of this process."""
    return sys.argv[1:]
