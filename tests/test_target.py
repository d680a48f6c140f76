"""Target rows: presets, this machine, and what a preset may not say."""

import archspec.cpu
import msgspec
import pytest

from mlc_compile import target as module
from mlc_compile.errors import ConfigError, DamageError, TargetError
from mlc_compile.layout import LAYOUTS
from mlc_compile.target import (
    EXTRA_FEATURES,
    HOST,
    cpu_features,
    find_target,
    host_target,
    missing_features,
    target_names,
)

V2, V3, V4 = (frozenset(archspec.cpu.TARGETS[f"x86_64_v{i}"].features) for i in (2, 3, 4))
PRESETS = [name for name in target_names() if name != HOST]


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be an x86-64 with exactly these features."""

    def pretend(features, family="x86_64"):
        monkeypatch.setattr(module, "cpu_features", lambda: frozenset(features))
        host = archspec.cpu.TARGETS[family]
        monkeypatch.setattr(module.archspec.cpu, "host", lambda: host)
        host_target.cache_clear()
        return host_target()

    yield pretend
    host_target.cache_clear()


def test_this_machine_comes_first_and_names_are_sorted():
    assert target_names()[0] == HOST
    assert list(target_names()[1:]) == sorted(PRESETS)
    assert "cpu-x86-64-v3" in PRESETS


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_consistent(name):
    row = find_target(name)
    assert row.name == name
    assert row.layout in LAYOUTS
    assert row.f32_lanes * 32 == row.vector_bits
    assert row.triple.startswith(row.arch)
    assert row.zig.split("-")[0] == {"arm64": "aarch64"}.get(row.arch, row.arch)


@pytest.mark.parametrize(
    ("name", "near"), [("cpu-x86-64-v5", "cpu-x86-64-v4"), ("cpuu", "cpu"), ("apple-m1", "m1")]
)
def test_an_unknown_name_lists_near_ones(name, near):
    with pytest.raises(ConfigError, match=f"no target '{name}'") as error:
        find_target(name)
    assert near in error.value.hint


@pytest.mark.parametrize(
    ("features", "level", "bits"), [(V2, "v2", 128), (V3, "v3", 256), (V4, "v4", 512)]
)
def test_this_machine_is_the_highest_level_it_meets(machine, features, level, bits):
    row = machine(features)
    assert row.name == HOST
    assert (row.mcpu, row.vector_bits) == (f"x86-64-{level}", bits)
    assert set(row.requires) == features


def test_one_missing_feature_drops_a_level(machine):
    assert machine(V4 - {"avx512dq"}).mcpu == "x86-64-v3"


def test_extras_are_required_and_told_to_llvm(machine):
    row = machine(V4 | {"avx512_vnni", "amx_int8", "sse5_imaginary"})
    assert {"avx512vnni", "amx-int8"} <= set(row.mattr)
    assert {"avx512_vnni", "amx_int8"} <= set(row.requires)
    assert "sse5_imaginary" not in row.requires


def test_a_machine_below_the_oldest_level_is_refused(machine):
    with pytest.raises(TargetError, match="below x86-64-v2") as error:
        machine({"sse", "sse2"})
    assert error.value.exit_code == 4


def test_an_arm_machine_is_the_arm_preset(machine):
    row = machine({"asimd", "asimddp", "fphp"}, family="aarch64")
    assert row.triple.startswith("aarch64")
    assert {"dotprod", "fullfp16"} <= set(row.mattr)


def test_this_machine_has_what_its_own_target_requires():
    assert missing_features(find_target(HOST).requires) == ()


def test_missing_features_are_named_in_order():
    assert missing_features(("zz_no", *sorted(cpu_features())[:2], "aa_no")) == ("zz_no", "aa_no")


def test_a_row_is_immutable():
    with pytest.raises(AttributeError):
        find_target("cpu-x86-64-v3").mcpu = "znver5"


@pytest.fixture
def presets(monkeypatch, tmp_path):
    """Read presets from an empty directory: `presets(text)` puts one there."""
    monkeypatch.setattr(module, "config_dir", lambda: tmp_path)
    module._rows.cache_clear()

    def put(text, name="cpu-test"):
        (tmp_path / "targets").mkdir(exist_ok=True)
        (tmp_path / "targets" / f"{name}.toml").write_text(text)
        module._rows.cache_clear()

    yield put
    module._rows.cache_clear()


GOOD = """
about = "a test"
backend = "cpu"
triple = "x86_64-unknown-linux-gnu"
system = "linux"
zig = "x86_64-linux-gnu.2.28"
mcpu = "x86-64-v3"
level = "x86_64_v3"
requires = ["avx_vnni"]
vector_bits = 256
vector_registers = 16
"""


def test_a_preset_requires_its_level_and_what_it_adds(presets):
    presets(GOOD)
    assert set(find_target("cpu-test").requires) == V3 | {"avx_vnni"}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GOOD + "surprise = 1\n", id="an unknown key"),
        pytest.param(GOOD.replace("256", '"wide"'), id="a value of another type"),
        pytest.param(GOOD.replace('mcpu = "x86-64-v3"\n', ""), id="a key missing"),
        pytest.param(GOOD.replace("x86_64_v3", "x86_64_v9"), id="an unknown level"),
        pytest.param(GOOD.replace('backend = "cpu"', 'backend = "tpu"'), id="an unknown backend"),
        pytest.param("about = [", id="not TOML"),
    ],
)
def test_a_wrong_preset_is_refused_by_its_path(presets, text):
    presets(text)
    with pytest.raises(ConfigError, match=r"cpu-test\.toml"):
        find_target("cpu-test")


def test_an_installation_without_presets_is_damaged(presets):
    with pytest.raises(DamageError, match="no target presets"):
        target_names()


def test_feature_names_are_those_of_the_kernel():
    known = {f for t in archspec.cpu.TARGETS.values() for f in t.features}
    assert set(EXTRA_FEATURES) <= known


def test_a_row_survives_json():
    row = find_target("cpu-sapphirerapids")
    assert msgspec.json.decode(msgspec.json.encode(row), type=type(row)) == row
