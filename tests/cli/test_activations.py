"""`compile --activations`: what it may say, and what the artifact says then."""

import json

import pytest

from mlc_compile.cli.app import invoke


@pytest.fixture(scope="module")
def model(nano_checkpoint, tmp_path_factory):
    """A model directory with nothing but its config, of one layer."""
    directory = tmp_path_factory.mktemp("models") / "bare"
    directory.mkdir()
    config = json.loads((nano_checkpoint / "config.json").read_text())
    config |= {"num_hidden_layers": 1, "max_window_layers": 1, "layer_types": ["full_attention"]}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def compiled(model, tmp_path, hollow):
    """`compiled("--target", ...)`: the directory of such a library."""

    def run(*options):
        assert invoke(["compile", str(model), "-o", str(tmp_path / "out"), *options]) == 0
        return tmp_path / "out"

    return run


REFUSED = {
    "unquantized weights": (["--quant", "q0f16", "--activations", "int8"], 2, "q0f16 has no"),
    "no instruction": (
        ["--target", "cpu-x86-64-v2", "--activations", "int8"],
        4,
        "has no int8 dot product",
    ),
    "no tiles": (
        ["--target", "cpu-x86-64-v4", "--activations", "bfloat16"],
        4,
        "has no tiles of bfloat16",
    ),
    "an unknown type": (["--activations", "int9"], 2, "no activation type 'int9'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_int8_activations_that_cannot_be_are_refused(here, model, tmp_path, case):
    options, code, told = REFUSED[case]
    ran = here("compile", model, "-o", tmp_path / "out", *options)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert "hint:" in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "expected", "libraries"),
    [
        (["--target", "cpu-x86-64-v2+v3"], "int8", ["float32", None]),
        (["--target", "cpu-x86-64-v3", "--activations", "float32"], "float32", [None]),
    ],
)
def test_the_manifest_says_what_was_chosen(compiled, options, expected, libraries):
    manifest = json.loads((compiled(*options) / "manifest.json").read_text())
    assert manifest["activations"] == expected
    assert [one["activations"] for one in manifest["libraries"]] == libraries


@pytest.mark.parametrize(
    ("options", "prompts"),
    [
        ([], "bfloat16"),
        (["--activations", "bfloat16"], "bfloat16"),
        (["--activations", "int8"], None),
    ],
)
def test_a_library_with_tiles_says_what_it_multiplies_prompts_in(
    compiled, capsys, options, prompts
):
    out = compiled("--target", "cpu-sapphirerapids", *options)
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["activations"] == "int8"
    assert [one["prompts"] for one in manifest["libraries"]] == [prompts]
    capsys.readouterr()
    assert invoke(["inspect", str(out)]) == 0
    told = capsys.readouterr().out
    assert ("lib.so, prompts in bfloat16, requires" in told) is (prompts is not None)
