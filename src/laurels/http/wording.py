"""The decoder's messages in words for people: which values are allowed, which fields there are, what was meant."""

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
    limits.URL_PATTERN: "that begins with http:// or https:// and has no spaces",
    limits.SLUG_PATTERN: "of letters, digits, '.', '_' and '-', with a letter or digit first",
}
_WHOLE = {
    "Object missing required field": "missing",
    "Number out of range": "too large for a double",
    "Invalid RFC3339 encoded datetime": "expected a timestamp as 2026-11-15T09:00:00Z",
    "Expected `datetime` with a timezone": "expected a timestamp with a zone, as 2026-11-15T09:00:00Z",
}
_LENGTH = re.compile(r"Expected `(str|array)` of length (>=|<=) (\d+)")
_QUOTED = re.compile(r"`([^`]*)`")
_ENUM = re.compile(r"Invalid enum value (.*)")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_REGEX = re.compile(r"Expected `str` matching regex '(.*)'", re.DOTALL)


def reword(what: str, kind: Any, field: str | None) -> str:
    """`what` is the message without its path, `kind` the type that was asked for, `field` where in it."""
    if match := _UNKNOWN.match(what):
        return _unknown_field(match[1], kind)
    if match := _ENUM.match(what):
        return f"{match[1]} is not one of {', '.join(_choices(kind, field))}"
    if match := _REGEX.match(what):
        return f"expected a string {_PATTERNS.get(match[1].encode().decode('unicode_escape'), 'of another form')}"
    for start, words in _WHOLE.items():
        if what.startswith(start):
            return words
    return _plain_sentence(what)


def _plain_sentence(what: str) -> str:
    if match := _LENGTH.match(what):
        unit = "characters" if match[1] == "str" else "items"
        return f"expected at {'least' if match[2] == '>=' else 'most'} {match[3]} {unit}"
    plain = _QUOTED.sub(lambda quoted: _plain_kinds(quoted[1]), what)
    return plain[0].lower() + plain[1:]


def _plain_kinds(text: str) -> str:
    names = [_KINDS.get(name, f"`{name}`") for name in text.split(" | ")]
    if "a number" in names:
        names = [name for name in names if name != "an integer"]
    return " or ".join(names)


def _unknown_field(name: str, kind: Any) -> str:
    known = _field_names(kind)
    close = difflib.get_close_matches(name, known, 1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"unknown{meant} There is: {', '.join(known)}" if known else "unknown: nothing can be sent here"


def _field_names(kind: Any) -> list[str]:
    return [field.encode_name for field in msgspec.structs.fields(kind)] if _is_struct(kind) else []


def _choices(kind: Any, name: str | None) -> list[str]:
    if not _is_struct(kind):
        return []
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return [choice for field in info.fields if field.encode_name == name for choice in _values(field.type)]


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


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
