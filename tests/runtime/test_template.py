"""Chat templates render as transformers renders them, and can do no harm."""

import json
from pathlib import Path

import pytest

from mlc_compile.errors import CheckpointError, DamageError
from mlc_compile.runtime.template import ChatTemplate, Message, read_template

CHAT = [Message("system", "Be <brief>."), Message("user", "Hi"), Message("assistant", "Ho"),
        Message("user", "And?")]  # fmt: skip

# The features that the templates of Qwen3 use, each at least once.
QWEN_LIKE = """
{%- if tools %}{{ tools | tojson }}{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content.strip('\\n') + '<|im_end|>\\n' }}
    {%- generation %}{{- '' }}{%- endgeneration %}
    {%- if loop.index0 == ns.last %}{{- '[last ' ~ (message | tojson) ~ ']' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""


def write(directory: Path, config: dict[str, object]) -> Path:
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


@pytest.mark.parametrize("thinking", [None, True, False])
@pytest.mark.parametrize("source", ["own", "qwen-like"])
def test_it_renders_what_transformers_renders(
    source: str, thinking: bool | None, tiny_checkpoint: Path
) -> None:
    chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")
    own = json.loads((tiny_checkpoint / "tokenizer_config.json").read_text())["chat_template"]
    text = own if source == "own" else QWEN_LIKE
    switch = {} if thinking is None else {"enable_thinking": thinking}
    turns = [{"role": m.role, "content": m.content} for m in CHAT]
    rendered = chat_template_utils.render_jinja_template(
        conversations=[turns], chat_template=text, add_generation_prompt=True, **switch
    )[0]
    assert ChatTemplate(text, {}).render(CHAT, thinking=thinking) == rendered[0]


def test_json_is_not_escaped_for_html() -> None:
    assert ChatTemplate("{{ messages[0].content | tojson }}", {}).render(CHAT) == '"Be <brief>."'


def test_special_tokens_may_be_objects_or_text(tmp_path: Path) -> None:
    directory = write(
        tmp_path,
        {
            "chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
            "bos_token": {"content": "<s>"},
            "eos_token": "</s>",
            "pad_token": None,
        },
    )
    assert read_template(directory).render(CHAT) == "<s>|</s>|"


def test_of_named_templates_the_default_is_taken(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    assert read_template(write(tmp_path, {"chat_template": named})).render(CHAT) == "yes"


@pytest.mark.parametrize("named", [["text"], [{"name": "default"}], [{"template": "x"}]])
def test_a_list_without_a_default_template_is_none(tmp_path: Path, named: list[object]) -> None:
    with pytest.raises(CheckpointError, match="no chat template"):
        read_template(write(tmp_path, {"chat_template": named}))


def test_a_template_in_a_file_of_its_own_wins(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("file")
    assert read_template(write(tmp_path, {"chat_template": "config"})).render(CHAT) == "file"


def test_a_file_that_is_no_text_is_damage(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(DamageError, match=r"chat_template\.jinja is damaged: .* UTF-8"):
        read_template(write(tmp_path, {}))


def test_a_model_without_a_template_cannot_chat(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no chat template") as e:
        read_template(write(tmp_path, {}))
    assert "mlc-compile run" in e.value.hint


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "refuses"),
        ("{{ 1 // 0 }}", "by zero"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}", "recursion"),
        ("{{ 'x' * 10**18 }}", "MemoryError"),
    ],
)
def test_what_a_template_may_not_do_is_an_error(source: str, said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        ChatTemplate(source, {}).render(CHAT)


def test_a_broken_template_is_an_error() -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        ChatTemplate("{% for %}", {})


def test_the_date_can_be_asked() -> None:
    assert ChatTemplate("{{ strftime_now('%Y') }}", {}).render(CHAT).isdecimal()
