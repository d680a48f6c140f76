"""`run` and `chat` as a user and a script see them."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mlc_compile.artifact import SEAL, Manifest, read_manifest, seal_of
from mlc_compile.cli.chat import _interruptible, _typed
from mlc_compile.cli.console import Output
from mlc_compile.cli.run import _standard_input
from mlc_compile.errors import ConfigError, DamageError, TargetError
from mlc_compile.runtime.tokenizer import Tokenizer

Cli = Callable[..., object]
PROMPT = "The function returns"


@pytest.fixture
def copy(nano_artifact: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(nano_artifact, tmp_path / "copy"))


def test_run_streams_the_text_that_json_reports(cli: Cli, nano_artifact: Path) -> None:
    asked = ["run", nano_artifact, "-p", PROMPT, "--max-tokens", 12]
    text, answer = cli(*asked), cli(*asked, "--json").json
    assert text.out == answer["text"] + "\n"
    assert "prefill" in text.err


def test_run_as_json_has_ids_text_ending_and_timings(cli: Cli, nano_artifact: Path) -> None:
    ran = cli("run", nano_artifact, "-p", PROMPT, "--max-tokens", 12, "--ignore-eos", "--json")
    tokenizer, answer = Tokenizer(nano_artifact), ran.json
    assert answer["prompt_token_ids"] == tokenizer.encode(PROMPT)
    assert len(answer["token_ids"]) == 12
    assert answer["text"] == tokenizer.decode(answer["token_ids"])
    assert answer["finish_reason"] == "length"
    assert set(answer["timings"]) == {
        "load_s",
        "prefill_s",
        "decode_s",
        "prefill_tok_s",
        "decode_tok_s",
    }
    assert answer["threads"] >= 1
    assert answer["device"] == "cpu"


def test_a_prompt_may_come_from_standard_input(cli: Cli, nano_artifact: Path) -> None:
    asked = ["run", nano_artifact, "--max-tokens", 4, "-q"]
    assert piped(f"{PROMPT}\n", *asked).stdout == cli(*asked, "-p", PROMPT).out


@pytest.mark.parametrize(
    ("text", "prompt"),
    [("a\n", "a"), ("a\r\n", "a"), ("a\n\n", "a\n"), ("a\r", "a\r"), ("\n a", "\n a"), ("", "")],
)
def test_one_newline_at_the_end_of_standard_input_is_dropped(
    monkeypatch: pytest.MonkeyPatch, text: str, prompt: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert _standard_input() == prompt


def test_equal_seeds_give_equal_texts_and_threads_do_not_matter(
    cli: Cli, nano_artifact: Path
) -> None:
    asked = ["run", nano_artifact, "-p", PROMPT, "--temperature", 1.5, "--max-tokens", 16, "-q"]
    first = cli(*asked, "--seed", 3, "--threads", 1).out
    assert cli(*asked, "--seed", 3, "--threads", 2).out == first
    assert cli(*asked, "--seed", 4).out != first


def test_a_stop_token_ends_the_text(cli: Cli, copy: Path) -> None:
    asked = ["run", copy, "-p", PROMPT, "--max-tokens", 8, "--json"]
    ids = cli(*asked, "--ignore-eos").json["token_ids"]
    config = json.loads((copy / "generation_config.json").read_text())
    text = json.dumps({**config, "eos_token_id": ids[3]}).encode()
    replace_file(copy, "generation_config.json", text)
    stopped = cli(*asked).json
    assert stopped["finish_reason"] == "stop"
    assert stopped["token_ids"] == ids[: ids.index(ids[3])]
    assert cli(*asked, "--ignore-eos").json["token_ids"] == ids


def test_a_stop_text_ends_the_text_before_it(cli: Cli, nano_artifact: Path) -> None:
    asked = ["run", nano_artifact, "-p", PROMPT, "--max-tokens", 12, "--ignore-eos", "--json"]
    text = cli(*asked).json["text"]
    stop = text[len(text) // 2 :][:3]
    answer = cli(*asked, "--stop", "not said at all", "--stop", stop).json
    assert answer["finish_reason"] == "stop_text"
    assert answer["text"] == text[: text.index(stop)]


def test_a_prompt_longer_than_the_context_is_told_with_numbers(nano_artifact: Path) -> None:
    context = read_manifest(nano_artifact, Manifest).limits.context
    ran = piped("word " * context, "run", nano_artifact)
    assert ran.returncode == ConfigError.exit_code
    assert f"the context holds {context} tokens" in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--top-p", "0"], "top-p must be above 0"),
        (["--temperature", "-1"], "temperature must be 0 or more"),
        (["--max-tokens", "0"], "max-tokens"),
        (["--min-p", "2"], "min-p must be from 0 to 1"),
        (["--repetition-penalty", "0"], "repetition-penalty must be from 0.1 to 10"),
        (["--stop", ""], "stop text"),
        (["-p", ""], "the prompt has no tokens"),
    ],
)
def test_options_out_of_range_are_refused(
    here: Cli, nano_artifact: Path, options: list[str], said: str
) -> None:
    ran = here("run", nano_artifact, "-p", PROMPT, *options)
    assert ran.code == ConfigError.exit_code
    assert said in ran.err


def test_a_model_directory_is_no_artifact(here: Cli, nano_checkpoint: Path) -> None:
    ran = here("run", nano_checkpoint, "-p", PROMPT)
    assert ran.code == ConfigError.exit_code
    assert "must be an artifact, but holds a model checkpoint" in ran.err


def test_an_artifact_for_another_cpu_is_refused_by_feature(here: Cli, copy: Path) -> None:
    edit_manifest(copy, libraries=[{"path": "lib.so", "requires": ["avx9000"], "priority": 0}])
    ran = here("run", copy, "-p", PROMPT)
    assert ran.code == TargetError.exit_code
    assert "this CPU lacks avx9000" in ran.err


def test_truncated_weights_are_damage(here: Cli, copy: Path) -> None:
    weights = copy / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-64])
    ran = here("run", copy, "-p", PROMPT)
    assert ran.code == DamageError.exit_code
    assert "weights.bin must have" in ran.err


def test_chat_asks_in_the_models_own_form(nano_artifact: Path) -> None:
    asked = ["chat", nano_artifact, "--max-tokens", 4, "--temperature", 0, "--json"]
    ran = piped("Hi\n\nAnd?\n", *asked, "--system", "Be brief.")
    first, second = json.loads(ran.stdout)["answers"]
    text = Tokenizer(nano_artifact)
    start = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
    assert first["prompt_token_ids"] == text.encode(start + "<|im_start|>assistant\n")
    said = f"{start}<|im_start|>assistant\n{first['text']}<|im_end|>\n"
    asked_again = said + "<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    assert second["prompt_token_ids"] == text.encode(asked_again)


def test_chat_with_a_prompt_gives_one_answer(cli: Cli, nano_artifact: Path) -> None:
    ran = cli("chat", nano_artifact, "-p", "Hi", "--max-tokens", 3, "--seed", 1, "--json")
    assert [m["role"] for m in ran.json["messages"]] == ["user", "assistant"]


def test_a_question_may_have_several_lines(nano_artifact: Path) -> None:
    lines = '"""What is\n\nthis?"""\n'
    ran = piped(lines, "chat", nano_artifact, "--max-tokens", 2, "--json")
    questions = [m["content"] for m in json.loads(ran.stdout)["messages"] if m["role"] == "user"]
    assert questions == ["What is\n\nthis?"]


def test_a_chat_on_a_terminal_says_how_it_ends_and_outlives_a_question_that_is_too_long(
    nano_artifact: Path,
) -> None:
    context = read_manifest(nano_artifact, Manifest).limits.context
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "mlc_compile", "chat", str(nano_artifact), "--json"]
    os.write(ours, b"caf\xff\n" + b"word " * context + b"\n/clear\n\x04")  # Ctrl-D
    env = os.environ | {"PYTHONIOENCODING": "utf-8:strict"}
    ran = subprocess.run(command, stdin=theirs, capture_output=True, text=True, check=True, env=env)
    os.close(ours)
    os.close(theirs)
    start, unreadable, _, refused, hint, end = ran.stderr.splitlines()
    assert start == "Ctrl-C ends an answer, Ctrl-D the chat"
    assert unreadable.startswith("> error: the text is not UTF-8")
    assert refused.startswith("> error: the prompt has")
    assert hint.startswith(" hint: ")
    assert end == "> > "
    assert json.loads(ran.stdout) == {"messages": [], "answers": []}  # answers alone


@pytest.mark.parametrize(("quiet", "mark"), [(False, "> "), (True, "")])
def test_a_chat_on_a_terminal_marks_where_to_type_and_lets_the_line_be_edited(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], quiet: bool, mark: str
) -> None:
    asked = []
    monkeypatch.delitem(sys.modules, "readline", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda text: asked.append(text) or "Hi")
    assert _typed(Output(quiet=quiet))("> ") == "Hi"
    assert asked == [mark]
    assert capsys.readouterr().err == ""
    assert "readline" in sys.modules


def test_an_interrupt_while_a_line_is_typed_drops_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = iter([KeyboardInterrupt, "Hi"])

    def read(_mark: str) -> str:
        if (line := next(said)) is KeyboardInterrupt:
            raise KeyboardInterrupt
        return str(line)

    monkeypatch.setattr("builtins.input", read)
    assert _typed(Output())("> ") == "Hi"


def test_who_talks_interrupts_an_answer_once_and_then_the_chat() -> None:
    with _interruptible(talking=True) as interrupted:
        assert not interrupted()
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):  # between answers
        signal.raise_signal(signal.SIGINT)


def test_a_press_while_another_is_noted_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noting takes a lock, which to take again in the handler would wait for ever."""
    noted = []

    def press_again(event: threading.Event) -> None:
        noted.append(event)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(threading.Event, "set", press_again)
    with pytest.raises(KeyboardInterrupt), _interruptible(talking=True):
        signal.raise_signal(signal.SIGINT)
    assert len(noted) == 1


def test_a_script_is_interrupted_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), _interruptible(talking=False):
        signal.raise_signal(signal.SIGINT)


def piped(text: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command with `text` on its standard input."""
    command = [sys.executable, "-m", "mlc_compile", *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False)


def replace_file(directory: Path, name: str, content: bytes) -> None:
    """Replace a file and its size in the manifest, which loading checks."""
    (directory / name).write_bytes(content)
    files = json.loads((directory / "manifest.json").read_text())["files"]
    sizes = [{**f, "nbytes": len(content)} if f["path"] == name else f for f in files]
    edit_manifest(directory, files=sizes)


def edit_manifest(directory: Path, **fields: object) -> None:
    path = directory / "manifest.json"
    raw = {**json.loads(path.read_text()), **fields}
    del raw[SEAL]
    path.write_text(json.dumps({**raw, SEAL: seal_of(raw)}))


def test_chat_samples_as_it_is_told(cli: Cli, nano_artifact: Path) -> None:
    asked = ["chat", nano_artifact, "-p", "Hi", "--max-tokens", 6, "-q"]
    greedy = cli(*asked, "--temperature", 0).out
    assert cli(*asked, "--temperature", 2, "--top-k", 1).out == greedy
    assert cli(*asked, "--temperature", 2, "--top-p", "1e-9").out == greedy
    assert cli(*asked, "--temperature", 2, "--min-p", 1).out == greedy
    assert cli(*asked, "--top-p", 3).code == ConfigError.exit_code


def test_a_chat_that_outgrows_the_context_says_to_start_anew(nano_artifact: Path) -> None:
    context = read_manifest(nano_artifact, Manifest).limits.context
    lines = "Hi\n" + "word " * context + "\n"
    ran = piped(lines, "chat", nano_artifact, "--max-tokens", 2)
    assert ran.returncode == ConfigError.exit_code
    assert f"but the context holds {context}" in ran.stderr
    assert ran.stderr.endswith(" hint: start a new chat\n")  # the model itself ends here
    ran = piped(lines, "chat", nano_artifact, "--max-tokens", 2, "--json")
    assert ran.returncode == ConfigError.exit_code
    (answer,) = json.loads(ran.stdout)["answers"]  # what was answered is not lost
    assert len(answer["token_ids"]) <= 2


def test_a_larger_context_is_advised_where_the_model_has_one(copy: Path) -> None:
    context = read_manifest(copy, Manifest).limits.context
    config = json.loads((copy / "config.json").read_text())
    text = json.dumps({**config, "max_position_embeddings": 2 * context}).encode()
    replace_file(copy, "config.json", text)
    ran = piped("Hi\n" + "word " * context + "\n", "chat", copy, "--max-tokens", 2)
    assert (
        f"start a new chat, or compile with a larger --context (up to {2 * context})" in ran.stderr
    )
