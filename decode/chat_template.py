"""Renders chat messages through a model's own template, with the meaning Hugging Face gives such templates.

Knows Jinja and the shape of messages; must not know tokens, requests or sockets. Templates run in Jinja's immutable
sandbox, since they come with the weights. Environment as in transformers' `utils/chat_template_utils.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from decode.types import InvalidRequest

BLAMED = 64  # conversations up to this long are rendered message by message to find the one a template refuses


class _GenerationBlock(Extension):
    """`{% generation %} … {% endgeneration %}` marks what the model wrote; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 - declared so by Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """A compiled template. Raises jinja2.TemplateSyntaxError when it cannot be compiled."""

    def __init__(self, template: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self._template = environment.from_string(template)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Any]) -> str:
        """The prompt for the assistant's next message.

        Raises InvalidRequest naming the message at fault: its shape, or what the template says of it.
        """
        if not isinstance(messages, list) or not messages:
            raise InvalidRequest("messages: must be a list of at least one message")
        checked = [_checked(message, f"messages[{i}]") for i, message in enumerate(messages)]
        try:
            return self._render(checked)
        except Exception as error:  # a template may fail in any way that Python can
            raise InvalidRequest(f"{self._blame(checked)}: the chat template refuses it: {error}") from None

    def _render(self, messages: list[dict[str, Any]]) -> str:
        return self._template.render(
            messages=messages, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
        )

    def _blame(self, messages: list[dict[str, Any]]) -> str:
        for i in range(len(messages) if len(messages) <= BLAMED else 0):
            try:
                self._render(messages[: i + 1])
            except Exception:
                return f"messages[{i}]"
        return "messages"


def _checked(message: Any, where: str) -> dict[str, Any]:
    """A message in the shape templates expect; content given in text parts becomes one string."""
    if not isinstance(message, dict):
        raise InvalidRequest(f"{where}: {message!r:.60} is not allowed; an object with role and content")
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidRequest(f"{where}.role: {role!r:.60} is not allowed; a non-empty string")
    if isinstance(content, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in content):
        content = "\n".join(part["text"] for part in content)
    if not isinstance(content, str) and not (content is None and message.get("tool_calls")):
        raise InvalidRequest(f"{where}.content: {content!r:.60} is not allowed; a string, or a list of text parts")
    return {**message, "content": content}
