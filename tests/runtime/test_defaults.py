"""Stop tokens and sampling come from the model's own files."""

import json
from pathlib import Path

import pytest

from mlc_compile.errors import DamageError
from mlc_compile.runtime.defaults import model_sampling, read_json, stop_tokens
from mlc_compile.runtime.sampler import GREEDY, Sampling


def write(directory: Path, **files: dict[str, object]) -> Path:
    names = {
        "generation": "generation_config.json",
        "config": "config.json",
        "chat": "mlc-chat-config.json",
    }
    for key, content in files.items():
        (directory / names[key]).write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("files", "stop"),
    [
        pytest.param({}, set(), id="nobody says"),
        pytest.param({"generation": {"eos_token_id": [5, 6]}}, {5, 6}, id="a list"),
        pytest.param({"generation": {}, "config": {"eos_token_id": 7}}, {7}, id="only config"),
        pytest.param(
            {"generation": {"eos_token_id": None}, "config": {"eos_token_id": 7}}, {7}, id="null"
        ),
        pytest.param({"config": {}, "chat": {"eos_token_id": [8]}}, {8}, id="only MLC's"),
        pytest.param(
            {"generation": {"eos_token_id": 0}, "config": {"eos_token_id": 7}}, {0}, id="id zero"
        ),
    ],
)
def test_the_first_file_that_names_stop_tokens_decides(
    tmp_path: Path, files: dict[str, dict[str, object]], stop: set[int]
) -> None:
    assert stop_tokens(write(tmp_path, **files)) == stop


def test_sampling_is_the_models_advice(tiny_checkpoint: Path) -> None:
    assert model_sampling(tiny_checkpoint) == Sampling(0.6, 20, 0.95)


@pytest.mark.parametrize("advice", [{}, {"do_sample": False, "temperature": 0.9}])
def test_without_advice_to_sample_it_is_greedy(tmp_path: Path, advice: dict[str, object]) -> None:
    assert model_sampling(write(tmp_path, generation=advice)) == GREEDY


@pytest.mark.parametrize("sampled", [True, False])
def test_advised_penalties_hold_for_greedy_texts_too(tmp_path: Path, sampled: bool) -> None:
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 1.5, "frequency_penalty": 0.5}
    advice = {"do_sample": sampled, "temperature": 0.7, "top_k": 0, "min_p": 0.1, **penalties}
    expected = Sampling(0.7, min_p=0.1, **penalties) if sampled else Sampling(**penalties)
    assert model_sampling(write(tmp_path, generation=advice)) == expected


def test_null_is_as_good_as_absent(tmp_path: Path) -> None:
    advice = {"do_sample": True, "temperature": None, "top_k": None, "top_p": None}
    assert model_sampling(write(tmp_path, generation=advice)) == Sampling(1.0, 50, 1.0)
    assert model_sampling(write(tmp_path, generation={"do_sample": None})) == GREEDY


def test_a_top_k_of_minus_1_is_none(tmp_path: Path) -> None:
    advice = {"do_sample": True, "top_k": -1}
    assert model_sampling(write(tmp_path, generation=advice)) == Sampling(1.0, 0, 1.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("do_sample", "yes"),
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_k", 2.5),
        ("top_k", -2),
        ("top_p", 0),
        ("top_p", [1]),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("frequency_penalty", -3),
        ("repetition_penalty", 0),
    ],
)
def test_wrong_advice_is_damage_by_file_and_field(
    tmp_path: Path, field: str, value: object
) -> None:
    advice = {"do_sample": True, field: value}
    with pytest.raises(DamageError, match=rf"generation_config\.json is damaged: .*\.{field}"):
        model_sampling(write(tmp_path, generation=advice))


@pytest.mark.parametrize("value", ["</s>", [1, "</s>"], 2.5, {}])
def test_stop_tokens_that_are_no_ids_are_damage(tmp_path: Path, value: object) -> None:
    with pytest.raises(DamageError, match=r"config\.json is damaged: .*\.eos_token_id"):
        stop_tokens(write(tmp_path, config={"eos_token_id": value}))


@pytest.mark.parametrize("content", ["{", "[1]", ""])
def test_a_broken_file_is_damage(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(DamageError, match=r"config\.json is damaged"):
        read_json(tmp_path, "config.json")
