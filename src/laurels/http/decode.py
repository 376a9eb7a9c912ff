"""Decoding of bodies, query parameters and cursors into typed values. Each kind of failure has an error code."""

import base64
import binascii
import json
import re
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from laurels.core.ids import composed
from laurels.core.limits import BODY_BYTES, USER_ID_CHARS
from laurels.errors import Invalid, LaurelsError, Malformed
from laurels.http.fields import COMPOSED
from laurels.http.wording import reword

T = TypeVar("T")

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<kind>key in )?\$(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMED = re.compile(r"field `([^`]*)`")
# Fractions finer than microseconds. The decoder would round them, possibly into the next day.
_LONG_FRACTION = re.compile(rb"(\.\d{6})\d+")

# Start of msgspec's message → error code. A test covers each of them.
_CODES = (
    ("Object missing required field", "missing_field"),
    ("Object contains unknown field", "unknown_field"),
    ("Number out of range", "not_finite"),
    ("Invalid RFC3339", "invalid_timestamp"),
    ("Expected `datetime` with a timezone", "invalid_timestamp"),
    ("Expected `str` of length", "wrong_length"),
    ("Expected `array` of length", "wrong_length"),
    ("Expected `object` of length", "wrong_length"),
    ("Expected `str` matching", "wrong_format"),
    ("Invalid enum value", "not_a_choice"),
    ("Expected `int` >=", "out_of_range"),
    ("Expected `int` <=", "out_of_range"),
    ("Expected `float` >", "out_of_range"),
    ("Expected `float` <=", "out_of_range"),
    ("Integer value out of range", "out_of_range"),
    ("Expected `", "wrong_type"),
    ("Invalid value", "wrong_type"),
)


def decode_body(body: bytes, decoder: "msgspec.json.Decoder[T]", noun: str = "body") -> T:
    """Decode JSON bytes into a typed value.

    Raises `Malformed` if the bytes are not a JSON object and `Invalid` if a value breaks a rule. `noun` names the bytes
    in error messages.
    """
    if not body:
        raise Malformed("invalid_json", f"The {noun} is empty. Send a JSON object.", rule="JSON in UTF-8")
    try:
        kind: Any = decoder.type
        decoded = decoder.decode(_truncated(body, kind) if _LONG_FRACTION.search(body) else body)
        if body.count(b":") > 1:
            _need_unique_names(body, _raw_fields(kind))
        return decoded if _is_plain(body) else compose_ids(decoded, kind)
    except msgspec.ValidationError as error:
        raise _from_msgspec(error, decoder.type, noun=noun) from None
    except RecursionError:
        raise Malformed(
            "too_deep", "The body is nested too deeply.", rule="at most a few hundred levels deep"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _from_bad_json(body, error) from None


def decode_plain(body: bytes, decoder: "msgspec.json.Decoder[T]") -> T | None:
    """Decode JSON bytes like `decode_body`; return None if they are invalid or need special treatment."""
    if _LONG_FRACTION.search(body):
        return None
    try:
        decoded = decoder.decode(body)
        _need_unique_names(body, frozenset())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, Malformed):
        return None
    kind: Any = decoder.type
    return decoded if _is_plain(body) else compose_ids(decoded, kind)


def decode_texts(texts: dict[str, str], kind: type[T]) -> T:
    """Convert query parameters to a typed value; raises `Invalid`."""
    try:
        decoded = msgspec.convert(texts, kind, strict=False)
        _need_no_null(texts, decoded, kind)
        return decoded if all(map(str.isascii, texts.values())) else compose_ids(decoded, kind)
    except msgspec.ValidationError as error:
        raise _from_msgspec(error, kind) from None


def _need_no_null(texts: dict[str, str], decoded: Any, kind: Any) -> None:
    """Take the text "null" as a text. The lax conversion takes it for nothing, which would mean the default."""
    for name, text in texts.items():
        if text.lower() != "null":
            continue
        (field,) = (each for each in msgspec.structs.fields(kind) if each.encode_name == name)
        try:
            setattr(decoded, field.name, msgspec.convert(text, field.type))
        except msgspec.ValidationError as error:
            raise _from_msgspec(error, field.type, name) from None


def decode_value(value: Any, kind: Any, name: str) -> Any:
    """Convert a single value, such as a user id in a path, to a type; raises `Invalid`."""
    try:
        return compose_ids(msgspec.convert(value, kind), kind)
    except msgspec.ValidationError as error:
        raise _from_msgspec(error, kind, name) from None


def compose_ids(value: T, kind: Any) -> T:
    """Bring the ids in a decoded value into the composed form (core/ids.py)."""
    return _composed(value, _ids_in(kind), "")  # type: ignore[no-any-return]


def _composed(value: Any, where: Any, name: str) -> Any:
    if where is None or value is None or value is msgspec.UNSET:
        return value
    if isinstance(where, dict):
        for field, inner in where.items():
            setattr(value, field, _composed(getattr(value, field), inner, field))
        return value
    if isinstance(where, list):
        return [_composed(each, where[0], name) for each in value]
    text = composed(value)
    # A few characters become several.
    if len(text) > USER_ID_CHARS:
        raise Invalid(
            "wrong_length",
            f"An id is longer than {USER_ID_CHARS} characters in Unicode's composed form (NFC).",
            field=_camel(name) or None,
            rule=f"<= {USER_ID_CHARS} characters",
        )
    return text


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@lru_cache(maxsize=256)
def _ids_in(kind: Any) -> Any:
    """Return where a type holds ids: True for an id, a list for a list, a dict of fields for a struct, else None."""
    return _where_ids_are(msgspec.inspect.type_info(kind))


def _where_ids_are(info: msgspec.inspect.Type) -> Any:
    match info:
        case msgspec.inspect.Metadata(type=inner, extra=extra):
            return True if extra == COMPOSED else _where_ids_are(inner)
        case msgspec.inspect.UnionType(types=types):
            return next((found for each in types if (found := _where_ids_are(each)) is not None), None)
        case msgspec.inspect.ListType(item_type=item):
            found = _where_ids_are(item)
            return None if found is None else [found]
        case msgspec.inspect.StructType(fields=fields):
            inside = {field.name: found for field in fields if (found := _where_ids_are(field.type)) is not None}
            return inside or None
    return None


def _is_plain(body: bytes) -> bool:
    """Return True if JSON has ASCII characters only."""
    return body.isascii() and b"\\u" not in body


def encode_cursor(number: int, name: str | None = None) -> str:
    """Encode the end of a page as a cursor: a number, and a name if the number alone is not unique."""
    text = str(number) if name is None else f"{number}.{name}"
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> int | None:
    """Return the number in a cursor made by `encode_cursor`."""
    position = decode_named_cursor(cursor)
    if position is None:
        return None
    if position[1]:
        raise bad_cursor()
    return position[0]


def decode_named_cursor(cursor: str | None) -> tuple[int, str] | None:
    """Return the number and the name in a cursor made by `encode_cursor`."""
    if cursor is None:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)).decode()
        digits, _, name = text.partition(".")
        number = int(digits)
        if str(number) == digits and 0 <= number < 2**63 and "\0" not in name:
            return number, name
    except (binascii.Error, ValueError):
        pass
    raise bad_cursor()


def decode_triple_cursor(cursor: str | None) -> tuple[int, int, str] | None:
    """Return the two numbers and the name in a cursor."""
    position = decode_named_cursor(cursor)
    if position is None:
        return None
    digits, _, name = position[1].partition(".")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise bad_cursor()
    return position[0], int(digits), name


def decode_pair_cursor(cursor: str | None) -> tuple[int, int] | None:
    position = decode_triple_cursor(cursor)
    return None if position is None else position[:2]


def bad_cursor() -> Invalid:
    return Invalid(
        "invalid_cursor",
        "The cursor is not valid. Send the `nextCursor` of the previous page.",
        field="cursor",
        rule="a nextCursor value",
    )


def _from_msgspec(error: msgspec.ValidationError, kind: Any, name: str = "", *, noun: str = "body") -> LaurelsError:
    match = _AT.match(str(error))
    assert match is not None
    what = match["what"]
    path = name + (match["path"] or "").removeprefix("$")
    if named := _NAMED.search(what):
        path = f"{path}.{named[1]}"
    field = path.lstrip(".") or None
    if field is None and what.startswith("Expected `object`"):
        return Malformed("not_an_object", f"The {noun} must be a JSON object.", rule="a JSON object")
    code = next((code for start, code in _CODES if what.startswith(start)), "wrong_type")
    rule = reword(what, kind, field)
    return Invalid(code, f"{field or 'The value'}: {rule}{'' if rule.endswith('?') else '.'}", field=field, rule=rule)


def _truncated(body: bytes, kind: Any) -> bytes:
    """Return the body with the timestamps in its top-level fields cut off after the microseconds."""
    moments = _moments(kind)
    if not moments:
        return body
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode(
        {
            name: msgspec.Raw(_LONG_FRACTION.sub(rb"\1", bytes(raw))) if name in moments else raw
            for name, raw in fields.items()
        }
    )


@lru_cache(maxsize=256)
def _moments(kind: Any) -> frozenset[str]:
    """Return the names of the fields of a type that can hold timestamps."""
    info = msgspec.inspect.type_info(kind)
    fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    return frozenset(field.encode_name for field in fields if _may_be_moment(field.type))


def _may_be_moment(info: msgspec.inspect.Type) -> bool:
    match info:
        case msgspec.inspect.DateTimeType():
            return True
        case msgspec.inspect.UnionType(types=types):
            return any(map(_may_be_moment, types))
        case msgspec.inspect.Metadata(type=inner):
            return _may_be_moment(inner)
    return False


@lru_cache(maxsize=256)
def _raw_fields(kind: Any) -> frozenset[str]:
    """Return the names of the fields of a type whose items are decoded later, one by one."""
    info = msgspec.inspect.type_info(kind)
    fields = info.fields if isinstance(info, msgspec.inspect.StructType) else ()
    return frozenset(
        field.encode_name
        for field in fields
        if isinstance(field.type, msgspec.inspect.ListType)
        and isinstance(field.type.item_type, msgspec.inspect.RawType)
    )


def _need_unique_names(body: bytes, only: frozenset[str]) -> None:
    """Raise `Malformed` if an object has two members with the same name, because readers differ in which one they take.

    `only`: check these names alone, because the others belong to items that are decoded one by one.
    """
    if only and b"\\" not in body and all(body.count(name.encode()) <= 1 for name in only):
        return

    def check(members: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in members:
            if name in seen and (not only or name in only):
                raise Malformed(
                    "duplicate_name", f"The name {name!r} appears twice in an object.", rule="each name once"
                )
            seen.add(name)

    # Numbers stay texts: the decoder has checked them.
    json.loads(body, object_pairs_hook=check, parse_int=str, parse_float=str)


def _from_bad_json(body: bytes, error: Exception) -> LaurelsError:
    """Return the error for a body that is not JSON.

    NaN and Infinity are not JSON, but the intent is clear: the error then names the field.
    """
    try:
        # Parsing again is affordable only for small bodies.
        found = _find_constant(json.loads(body, parse_constant=_NotFinite)) if len(body) <= BODY_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if found is None:
        return Malformed("invalid_json", f"The body is not JSON: {error}.", rule="JSON in UTF-8")
    path, constant = found
    return Invalid(
        "not_finite",
        f"{constant.name} is not a valid number. Send a finite number.",
        field=path.lstrip(".") or None,
        rule="a finite number",
    )


class _NotFinite:
    def __init__(self, name: str) -> None:
        self.name = name


def _find_constant(value: Any, path: str = "") -> tuple[str, _NotFinite] | None:
    if isinstance(value, _NotFinite):
        return path, value
    children: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        children = [(f"{path}.{name}", each) for name, each in value.items()]
    elif isinstance(value, list):
        children = [(f"{path}[{number}]", each) for number, each in enumerate(value)]
    return next((found for name, each in children if (found := _find_constant(each, name))), None)
