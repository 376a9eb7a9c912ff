"""Readable validation errors, made from msgspec's: they list allowed values and fields, and suggest a correction."""

import difflib
import re
from typing import Any

import msgspec

from laurels.core import limits

_KINDS = {
    "int": "an integer",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "datetime": "a timestamp",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_PATTERNS = {
    limits.ID_PATTERN: "without control characters",
    limits.DISPLAY_NAME_PATTERN: "without control, invisible or bidirectional characters",
    limits.URL_PATTERN: "that starts with http:// or https:// and has no spaces or control characters",
    limits.PATH_PATTERN: "of names separated by dots, such as user.id",
    limits.LETTER_ID_PATTERN: "of a partition and an offset, such as 0-17",
    limits.PERCENTILES_PATTERN: f"of up to {limits.PERCENTILES} numbers from 0 to 100, such as 50,99,99.9",
    limits.BOARDS_PATTERN: f"of up to {limits.BOARDS} board UUIDs, separated by commas",
    limits.INCLUDE_PATTERN: "that is metadata, attributes, or both, separated by a comma",
    limits.SLUG_PATTERN: "of letters, digits, '.', '_' and '-', with a letter or digit first",
}
_WHOLE = {
    "Object missing required field": "missing",
    "Number out of range": "too large for a double",
    "Invalid RFC3339 encoded datetime": "expected a timestamp such as 2026-11-15T09:00:00Z",
    "Expected `datetime` with a timezone": "expected a timestamp with a time zone, such as 2026-11-15T09:00:00Z",
}
_LENGTH = re.compile(r"Expected `(str|array|object)` of length (>=|<=) (\d+)")
_QUOTED = re.compile(r"`([^`]*)`")
_ENUM = re.compile(r"Invalid enum value (.*)")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]]+")
_REGEX = re.compile(r"Expected `str` matching regex '(.*)'", re.DOTALL)


def reword(what: str, kind: Any, field: str | None) -> str:
    """Return a readable version of one of msgspec's messages.

    `what` is the message without its path, `kind` the expected type, and `field` the path of the value within it.
    """
    if match := _UNKNOWN.match(what):
        return _unknown_field(match[1], kind, field)
    if match := _ENUM.match(what):
        return f"{match[1]} is not one of {', '.join(_choices(kind, field))}"
    if match := _REGEX.match(what):
        return f"expected a string {_PATTERNS.get(match[1].encode().decode('unicode_escape'), 'in another format')}"
    for start, words in _WHOLE.items():
        if what.startswith(start):
            return words
    return _plain_sentence(what)


def _plain_sentence(what: str) -> str:
    if match := _LENGTH.match(what):
        unit = {"str": "character", "array": "item", "object": "field"}[match[1]]
        return (
            f"expected at {'least' if match[2] == '>=' else 'most'} {match[3]} {unit}{'' if match[3] == '1' else 's'}"
        )
    plain = _QUOTED.sub(lambda quoted: _plain_kinds(quoted[1]), what)
    return plain[0].lower() + plain[1:]


def _plain_kinds(text: str) -> str:
    names = [_KINDS.get(name, f"`{name}`") for name in text.split(" | ")]
    if "a number" in names:
        names = [name for name in names if name != "an integer"]
    return " or ".join(names)


def _unknown_field(name: str, kind: Any, field: str | None) -> str:
    known = _names(_at(kind, (field or "").rpartition(".")[0]))
    close = difflib.get_close_matches(name, known, 1)
    meant = f"; did you mean {close[0]}?" if close else "."
    return f"unknown{meant} Allowed: {', '.join(known)}" if known else "unknown: nothing is allowed here"


def _choices(kind: Any, field: str | None) -> list[str]:
    return [value for info in _at(kind, field or "") for value in _values(info)]


def _at(kind: Any, path: str) -> list[msgspec.inspect.Type]:
    """Return the types that a value at a path such as `windows[0].startDay` can have; empty if the path is unknown."""
    found = [msgspec.inspect.type_info(kind)]
    for step in _STEP.findall(path):
        found = [inner for info in found for each in _parts(info) for inner in _step(each, step)]
    return [each for info in found for each in _parts(info)]


def _step(info: msgspec.inspect.Type, step: str) -> list[msgspec.inspect.Type]:
    match info:
        case msgspec.inspect.StructType(fields=fields):
            return [field.type for field in fields if field.encode_name == step]
        case msgspec.inspect.ListType(item_type=item) if step.startswith("["):
            return [item]
    return []


def _parts(info: msgspec.inspect.Type) -> list[msgspec.inspect.Type]:
    match info:
        case msgspec.inspect.UnionType(types=types):
            return [part for each in types for part in _parts(each)]
        case msgspec.inspect.Metadata(type=inner):
            return _parts(inner)
    return [info]


def _names(infos: list[msgspec.inspect.Type]) -> list[str]:
    return [
        field.encode_name for info in infos if isinstance(info, msgspec.inspect.StructType) for field in info.fields
    ]


def _values(info: msgspec.inspect.Type) -> list[str]:
    match info:
        case msgspec.inspect.EnumType(cls=cls):
            return [str(member.value) for member in cls]
        case msgspec.inspect.LiteralType(values=values):
            return [str(value) for value in values]
        case msgspec.inspect.UnionType(types=types):
            return [value for each in types for value in _values(each)]
        case msgspec.inspect.Metadata(type=inner):
            return _values(inner)
    return []
