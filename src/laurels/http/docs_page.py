"""The documentation page, rendered once from the OpenAPI document. It has no scripts and no external resources."""

import html
from importlib.resources import files
from typing import Any

import msgspec


def render_docs(openapi: bytes) -> str:
    document = msgspec.json.decode(openapi)
    groups: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            section = _operation(path, method.upper(), operation, document)
            groups.setdefault(operation["tags"][0], []).append(section)
    template = (files("laurels.http") / "docs.html").read_text("utf-8")
    nav = "".join(f'<a href="#{_slug(tag)}">{_text(tag)}</a>' for tag in groups)
    body = "".join(
        f'<section id="{_slug(tag)}"><h2>{_text(tag)}</h2>{"".join(sections)}</section>'
        for tag, sections in groups.items()
    )
    return (
        template.replace("{{version}}", _text(document["info"]["version"]))
        .replace("{{nav}}", nav)
        .replace("{{body}}", body)
    )


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    parts = [f"<p>{_prose(operation['description'])}</p>"] if "description" in operation else []
    parameters = operation["parameters"]
    if parameters:
        rows = [(p["name"], _type(p["schema"], document), p["schema"], p["in"]) for p in parameters]
        parts.append("<h4>Parameters</h4>" + _table(rows))
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        parts.append("<h4>Body</h4>" + _fields(schema, document, note_required=True))
    for status, response in operation["responses"].items():
        if status.startswith("2"):
            (content,) = response["content"].values()
            parts.append(f"<h4>Response {status}</h4>" + _fields(content["schema"], document))
    errors = [status for status in operation["responses"] if not status.startswith("2")]
    parts.append(f'<p class="errors">Errors: {", ".join(errors)}</p>')
    return (
        f'<details id="{operation["operationId"]}"><summary><code class="{method}">{method}</code>'
        f"<code>{_text(path)}</code><span>{_text(operation['summary'])}</span></summary>{''.join(parts)}</details>"
    )


def _fields(schema: dict[str, Any], document: dict[str, Any], *, note_required: bool = False) -> str:
    resolved = _resolve(schema, document)
    properties = resolved.get("properties")
    if properties is None:
        return f"<p><code>{_text(_type(schema, document))}</code></p>"
    required = set(resolved.get("required", [])) if note_required else set()
    rows = [
        (name, _type(each, document), each, "required" if name in required else "") for name, each in properties.items()
    ]
    nested = [
        f"<h5>{_text(name)}</h5>" + _fields(choice, document, note_required=note_required)
        for each in properties.values()
        for choice in _alternatives(each.get("items", each))
        if (name := _named_object(choice, document)) is not None
    ]
    return _table(rows) + "".join(nested)


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = schema.get("anyOf", [schema])
    return found


def _named_object(schema: dict[str, Any], document: dict[str, Any]) -> str | None:
    """Return the name of an object schema that has its own table, or None."""
    reference = schema.get("$ref")
    if reference is None or "properties" not in _resolve(schema, document):
        return None
    return str(reference).rpartition("/")[2]


def _table(rows: list[tuple[str, str, dict[str, Any], str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{_text(name)}</code></td><td>{_text(kind)}</td><td>{_prose(_notes(schema, note))}</td></tr>"
        for name, kind, schema, note in rows
    )
    return f"<table>{cells}</table>"


def _notes(schema: dict[str, Any], note: str) -> str:
    flat = {**schema}
    for choice in schema.get("anyOf", []):
        flat |= choice
    notes = [note] if note else []
    if "exclusiveMinimum" in flat:
        notes.append(f"more than {flat['exclusiveMinimum']}, up to {flat.get('maximum', '')}")
    elif "minimum" in flat or "maximum" in flat:
        notes.append(f"{flat.get('minimum', '')}..{flat.get('maximum', '')}")
    if "maxLength" in flat:
        notes.append(f"{flat.get('minLength', 0)} to {flat['maxLength']} characters")
    if "maxItems" in flat:
        notes.append(f"{flat.get('minItems', 0)} to {flat['maxItems']} items")
    if schema.get("default") is not None:
        notes.append(f"default `{msgspec.json.encode(schema['default']).decode()}`")
    if "description" in flat:
        notes.append(flat["description"])
    return "; ".join(notes)


def _type(schema: dict[str, Any], document: dict[str, Any]) -> str:
    if "anyOf" in schema:
        kinds = dict.fromkeys(_type(each, document) for each in schema["anyOf"])
        return " or ".join(kinds if "number" not in kinds else [k for k in kinds if k != "integer"])
    resolved = _resolve(schema, document)
    if "enum" in resolved:
        return " | ".join(str(each) for each in resolved["enum"])
    if name := _named_object(schema, document):
        return name
    kind = str(resolved.get("type", "any"))
    if kind == "array":
        item = resolved.get("items", {})
        return f"list of {_named_object(item, document) or _type(item, document)}"
    return "timestamp" if resolved.get("format") == "date-time" else kind


def _resolve(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    if reference is None:
        return schema
    found: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return found


def _slug(text: str) -> str:
    return text.lower().replace(" ", "-")


def _text(text: Any) -> str:
    return html.escape(str(text))


def _prose(text: str) -> str:
    """Return escaped text as HTML, with text in backquotes as code."""
    parts = _text(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
