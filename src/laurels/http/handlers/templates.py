"""Templates of boards. The server keys of a pod manage its templates."""

from typing import Any

from laurels.core.instants import to_datetime
from laurels.errors import NotFound
from laurels.http.answers import BoardAnswer, TemplateAnswer, TemplatesAnswer
from laurels.http.board_parts import read_board, show_definition
from laurels.http.call import Call
from laurels.http.decode import decode_value
from laurels.http.fields import TemplateName
from laurels.http.handlers.boards import answer_created
from laurels.http.queries import NoQuery
from laurels.http.requests import TemplateBody, TemplateUse
from laurels.ports import Template


async def get_templates(call: Call[NoQuery, None]) -> TemplatesAnswer:
    """List the templates of a pod."""
    pod_id = await call.laurels.access.pod_of(call.caller, call.path("podId"))
    return TemplatesAnswer(templates=[_answer(each) for each in call.laurels.templates.of_pod(pod_id)])


async def get_template(call: Call[NoQuery, None]) -> TemplateAnswer:
    """Return a template."""
    pod_id = await call.laurels.access.pod_of(call.caller, call.path("podId"))
    return _answer(call.laurels.templates.find(pod_id, _name(call)))


async def put_template(call: Call[NoQuery, TemplateBody]) -> TemplateAnswer:
    """Create or replace a template: what new boards of a pod are like.

    With a `prefix`, the first score for a board whose UUID begins with it creates the board, if the pod has room for
    it. If several templates of the pod match, the longest prefix wins. Boards that exist do not change.
    """
    templates, name = call.laurels.templates, _name(call)
    pod_id = await call.laurels.access.pod_of(call.caller, call.path("podId"))
    try:
        before = _answer(templates.find(pod_id, name))
    except NotFound:
        before = None
    stored = _answer(await templates.put(pod_id, name, call.body.prefix, read_board(call.body.board)))
    call.note_change(before, stored)
    return stored


async def delete_template(call: Call[NoQuery, None]) -> TemplateAnswer:
    """Delete a template. The boards that were created from it stay."""
    pod_id = await call.laurels.access.pod_of(call.caller, call.path("podId"))
    deleted = _answer(await call.laurels.templates.delete(pod_id, _name(call)))
    call.note_change(deleted, None)
    return deleted


async def post_template_board(call: Call[NoQuery, TemplateUse]) -> BoardAnswer:
    """Create a board from a template.

    Repeating the call returns the existing board, unless the template has changed since.
    """
    pod_id = await call.laurels.access.pod_of(call.caller, call.path("podId"))
    template = call.laurels.templates.find(pod_id, _name(call))
    created = await call.laurels.templates.create(template, call.body.uuid, call.body.name, call.caller.key_id)
    return await answer_created(call, created)


def _name(call: Call[Any, Any]) -> str:
    return str(decode_value(call.path("templateName"), TemplateName, "templateName"))


def _answer(template: Template) -> TemplateAnswer:
    return TemplateAnswer(
        pod_id=template.pod_id,
        name=template.name,
        prefix=template.prefix,
        board=show_definition(template.board),
        created_at=to_datetime(template.created_at),
        updated_at=to_datetime(template.updated_at),
    )
