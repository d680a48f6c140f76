"""What is typed wrongly is told in our words, with what to type instead."""

import pytest

from mlc_compile.cli.app import COMMANDS, GROUPS, invoke


@pytest.mark.parametrize(
    ("line", "told", "hint"),
    [
        ("run D --max-tokens 0", "--max-tokens must be 1 or more, got 0", "run --help"),
        ("bench D --repeats 0", "--repeats must be 1 or more, got 0", "bench --help"),
        ("eval D --text T --window 1", "--window must be 2 or more, got 1", "eval --help"),
        ("web D --port 99999", "--port must be 0 to 65535, got 99999", "web --help"),
        ("build M --context abc", "--context must be a whole number, got 'abc'", "build --help"),
        ("tune M --context 4k", "--context must be a whole number, got '4k'", "tune --help"),
        ("chat D --temperature hot", "--temperature must be a number, got 'hot'", "chat --help"),
        ("cache verify --bad", "no such option: --bad", "see mlc-compile cache verify --help"),
        ("biuld M", "no such command 'biuld'", "did you mean 'build'?"),
        ("cache stast", "no such command 'stast'", "did you mean 'stats'?"),
        ("build M --targt cpu", "no such option: --targt", "did you mean '--target'?"),
        ("run", "missing argument 'DIR'", "see mlc-compile run --help"),
        (
            "build M --tune 0s",
            "--tune must be more than zero",
            "--tune 20m, or 1h; units are s, m and h",
        ),
        ("bench D --threads x", "--threads must be numbers separated", "--threads 1,2"),
        ("cache import nope", "no bundle nope", "a file that mlc-compile cache export wrote"),
        ("cache export no/b", "FILE: there is no directory no", "mkdir -p no"),
    ],
)
def test_a_mistake_is_a_plain_sentence(capsys, monkeypatch, tmp_path, line, told, hint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "M").mkdir()
    (tmp_path / "M" / "config.json").touch()
    assert invoke(line.split()) == 2
    error, advice = capsys.readouterr().err.splitlines()
    assert error.startswith(f"error: {told}")
    assert advice.startswith(" hint: ")
    assert advice.endswith(hint)


@pytest.mark.parametrize("option", ["--json", "--quiet", "--cache-dir=/x"])
@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("{} run D", "run"),
        ("{} cache stats", "cache stats"),
        ("cache {} stats", "cache stats"),
    ],
)
def test_a_common_option_before_the_command_is_told_where_it_goes(capsys, line, name, option):
    assert invoke(line.format(option).split()) == 2
    flag = option.partition("=")[0]
    told = f"put {flag} after the command: mlc-compile {name} ... {flag}"
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "name", "hint"),
    [
        (["build", ""], "MODEL", "give a model directory, or . for this one"),
        (["cache", "explain", ""], "MODEL", "give a model directory, or . for this one"),
        (["bench", "a", ""], "DIR", "give an artifact's directory, or . for this one"),
        (["run", ""], "DIR", "give an artifact's directory, or . for this one"),
        (["build", "M", "-o", ""], "--out", "give a path"),
        (["inspect", "D", "--html", ""], "--html", "give a path"),
        (["cache", "export", ""], "FILE", "give a path"),
    ],
)
def test_an_empty_path_is_not_the_current_directory(capsys, words, name, hint):
    assert invoke(words) == 2
    assert capsys.readouterr().err == f"error: {name} is empty\n hint: {hint}\n"


def test_a_group_alone_shows_its_help(capsys):
    for group in GROUPS:
        assert invoke([group]) == 0
        alone = capsys.readouterr()
        assert alone.err == ""
        invoke([group, "--help"])
        assert alone.out == capsys.readouterr().out


def test_no_command_is_called_as_a_group():
    assert not set(COMMANDS) & set(GROUPS)


def test_the_help_has_one_name_for_an_option(capsys):
    assert invoke(["cache", "gc", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--cache-size" in shown
    assert "--max-size" not in shown  # its old name, which is still taken
