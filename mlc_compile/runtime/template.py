"""Render a conversation as the model was trained to read it: the checkpoint's Jinja template.

A template is a program from the model's author, so it runs in Jinja's immutable sandbox, with
the filters and functions that transformers offers it.
"""

import datetime
import json
from pathlib import Path
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.sandbox
import msgspec

from mlc_compile.errors import CheckpointError, DamageError
from mlc_compile.runtime.defaults import read_json

TOKENIZER_CONFIG: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"  # where transformers 5 keeps it
MARKS: Final = ("bos_token", "eos_token", "pad_token", "unk_token")

THINK, THOUGHT = "<think>", "</think>"  # Qwen3's marks around what it thinks before it answers


class Message(msgspec.Struct, frozen=True):
    """One turn: role is "system", "user" or "assistant"."""

    role: str
    content: str


# A template is a program that somebody else wrote: all that its expressions can raise.
WHAT_TEMPLATES_RAISE: Final = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template and the special tokens that it may name."""

    def __init__(self, source: str, marks: dict[str, str]) -> None:
        self._marks = marks
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as e:
            raise CheckpointError(
                f"the chat template cannot be read: {e}", hint=f"see {TOKENIZER_CONFIG}"
            ) from e

    def render(self, messages: list[Message], *, thinking: bool | None = None) -> str:
        """The prompt that asks for the next assistant turn.

        `thinking` sets Qwen3's `enable_thinking`; None leaves it to the template.
        """
        switch = {} if thinking is None else {"enable_thinking": thinking}
        turns = [msgspec.structs.asdict(message) for message in messages]
        try:
            return self._template.render(
                messages=turns, tools=None, documents=None, add_generation_prompt=True,
                **self._marks, **switch,
            )  # fmt: skip
        except WHAT_TEMPLATES_RAISE as e:
            reason = str(e) or type(e).__name__
            raise CheckpointError(
                f"the chat template refuses this conversation: {reason}",
                hint=f"see {TOKENIZER_CONFIG}",
            ) from e


def read_template(directory: Path) -> ChatTemplate:
    """The template of an artifact.

    CheckpointError if the model has none, DamageError for a file that cannot be read as text.
    """
    config = read_json(directory, TOKENIZER_CONFIG)
    file = directory / TEMPLATE_FILE
    source = _text_of(file) if file.is_file() else _default(config.get("chat_template"))
    if source is None:
        raise CheckpointError(
            f"{directory} has no chat template, so this model cannot chat",
            hint="use `mlc-compile run`, which continues a plain text",
        )
    marks = {name: _text(config.get(name)) for name in MARKS}
    return ChatTemplate(source, marks)


def without_half_thought(prompt: str, answer: str) -> str:
    """`answer`, or nothing if it ended within the thought that it, or the prompt, began with.

    Qwen3's templates leave the thoughts of earlier turns out, but look for their end alone.
    """
    begun = prompt.rstrip().endswith(THINK) or answer.lstrip().startswith(THINK)
    return "" if begun and THOUGHT not in answer else answer


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise DamageError(
            f"{file} is damaged: it is not UTF-8 text",
            hint="rebuild the artifact; if the model's own file is like this, download it again",
        ) from e


def _default(value: Any) -> str | None:
    """The template itself, or of a list of named ones that called "default"."""
    if isinstance(value, list):
        named = [e for e in value if isinstance(e, dict) and e.get("name") == "default"]
        value = named[0].get("template") if named else None
    return value if isinstance(value, str) else None


def _text(mark: Any) -> str:
    """A special token is written as text, or as an object that holds it as `content`."""
    return mark.get("content", "") if isinstance(mark, dict) else mark or ""


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's own words for training; here a plain block."""

    def __init__(self, environment: jinja2.Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """Jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
