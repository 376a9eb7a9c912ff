"""Fields of the API on the command line, as NAME=VALUE, and JSON files."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from laurels.errors import Invalid

Fields = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=VALUE]...", help="Fields of the API. A value is JSON, or else a text."),
]


def read_fields(given: list[str] | None) -> dict[str, Any]:
    """Return the fields that were given as NAME=VALUE.

    Raises `Invalid` if one has another form.
    """
    read = {}
    for each in given or []:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise Invalid("wrong_format", f"{each!r} must be NAME=VALUE, such as public=true.", field=each)
        try:
            read[name] = json.loads(value)
        except ValueError:
            read[name] = value
    return read


def read_json(file: str) -> dict[str, Any]:
    """Return the JSON object in a file, or in standard input if the file is `-`.

    Raises `Invalid` if it has no JSON object.
    """
    text = sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    name = "standard input" if file == "-" else file
    try:
        read = json.loads(text)
    except ValueError as error:
        raise Invalid("invalid_json", f"{name} is not JSON: {error}.") from None
    if not isinstance(read, dict):
        raise Invalid("not_an_object", f"{name} must contain a JSON object.")
    return read
