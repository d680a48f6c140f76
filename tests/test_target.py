"""Target rows: presets, this machine, and what a preset may not say."""

import platform

import archspec.cpu
import archspec.cpu.detect
import msgspec
import pytest

from mlc_compile import target as module
from mlc_compile.errors import ConfigError, DamageError, TargetError
from mlc_compile.layout import LAYOUTS
from mlc_compile.target import (
    BF16_TILE_FEATURES,
    EXTRA_FEATURES,
    HOST,
    INT8_DOT_FEATURES,
    cpu_features,
    find_target,
    host_target,
    missing_features,
    target_names,
    triple_mismatch,
)

V2, V3, V4 = (frozenset(archspec.cpu.TARGETS[f"x86_64_v{i}"].features) for i in (2, 3, 4))
PRESETS = [name for name in target_names() if name != HOST]


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a machine with exactly these features."""

    def pretend(features, arch="x86_64", system="Linux"):
        monkeypatch.setattr(module, "cpu_features", lambda: frozenset(features))
        monkeypatch.setattr(platform, "machine", lambda: arch)
        monkeypatch.setattr(platform, "system", lambda: system)
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


# What Vulkan 1.1 promises of every device (its specification, "Required Limits").
PROMISED = {"shared_bytes": 16384, "binding_bytes": 1 << 27, "grid": 65535}
VULKAN = [name for name in PRESETS if find_target(name).backend == "vulkan"]


@pytest.mark.parametrize("name", VULKAN)
def test_a_vulkan_row_is_at_least_the_generic_one(name):
    least, device = find_target("vulkan").device, find_target(name).device
    for limit, promised in PROMISED.items():
        assert getattr(least, limit) == promised
        assert getattr(device, limit) >= promised
    assert device.threads >= least.threads
    assert device.buffers is None or device.buffers >= least.buffers
    assert device.subgroup == 1, "no driver promises one size"
    assert device.binding_bytes < 1 << 32, "a binding's size is a uint32"


GPUS = [name for name in PRESETS if find_target(name).device is not None]


@pytest.mark.parametrize("name", GPUS)
def test_matrices_are_those_of_the_backend(name):
    """What `tensor_cores` stands for began with sm_80."""
    row = find_target(name)
    assert row.device.tensor_cores is (row.backend == "cuda")
    assert row.device.simdgroup_matrices is (row.backend == "metal")
    assert all(int(arch.removeprefix("sm_")) >= 80 for arch in row.device.archs)


@pytest.mark.parametrize("name", PRESETS)
def test_only_webgpu_forbids_to_write_what_another_argument_reads(name):
    row = find_target(name)
    assert row.in_place is (row.backend != "webgpu")


@pytest.mark.parametrize(
    ("name", "near"),
    [("cpu-x86-64-v5", "cpu-x86-64-v4"), ("cpuu", "cpu"), ("CPU", "cpu"), ("apple-m1", "m1")],
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
    row = machine(V4 | {"avx512_vnni", "avx512_fp16", "amx_int8", "sse5_imaginary"})
    assert set(row.mattr) == {"avx512vnni", "avx512fp16"}
    assert set(row.requires) == V4 | {"avx512_vnni", "avx512_fp16"}


def test_tiles_are_extras_as_a_pair(machine):
    row = machine(V4 | {"amx_bf16", "amx_tile", "amx_int8"})
    assert row.bf16_tiles
    assert set(row.mattr) == {"amx-bf16", "amx-tile"}
    assert not machine(V4 | {"amx_tile"}).bf16_tiles


def _memory(row):
    return row.streams, row.ask_bytes, row.l2_bytes


def test_what_is_known_of_a_chip_is_told_by_its_features(machine):
    preset, plain = find_target("cpu-sapphirerapids"), find_target("cpu-x86-64-v4")
    row = machine({*preset.requires, "amx_int8"})
    assert (row.name, set(row.requires)) == (HOST, set(preset.requires))
    assert _memory(row) == _memory(preset)
    hidden = machine({*preset.requires} - {"avx512_fp16"})
    assert _memory(hidden) == _memory(plain)
    assert hidden.bf16_tiles  # an extra of the level


def test_a_machine_below_the_oldest_level_is_refused(machine):
    with pytest.raises(TargetError, match=r"below cpu-x86-64-v2, .* it lacks cx16") as error:
        machine({"sse", "sse2"})
    assert error.value.exit_code == 4


def test_an_arm_machine_is_the_arm_preset(machine):
    row = machine({"asimd", "asimddp", "fphp"}, "aarch64")
    assert row.triple.startswith("aarch64")
    assert set(row.mattr) == {"neon", "dotprod"}


def test_an_arm_machine_that_multiplies_matrices_says_so(machine):
    preset = find_target("cpu-aarch64-i8mm")
    row = machine({*preset.requires, "svei8mm"}, "aarch64")
    assert (row.mcpu, row.mattr, set(row.requires)) == (
        preset.mcpu,
        preset.mattr,
        set(preset.requires),
    )


def test_one_that_hides_another_feature_still_does(machine):
    row = machine({"asimd", "asimddp", "i8mm"}, "aarch64")
    assert (row.mcpu, row.requires) == ("generic", ("asimd", "asimddp", "i8mm"))
    assert set(row.mattr) == {"neon", "dotprod", "i8mm"}


def test_a_mac_with_an_apple_chip_is_the_mac_preset(machine):
    row = machine({"asimd", "asimddp"}, "arm64", "Darwin")
    assert (row.name, row.system, row.library) == (HOST, "macos", "lib.dylib")
    assert row.int8_dot == "asimddp"


@pytest.mark.parametrize(("more", "chip"), [((), "apple-m1"), (("i8mm",), "apple-m2")])
def test_a_mac_is_compiled_for_as_its_chip_allows(machine, more, chip):
    row = machine({"asimd", "asimddp", *more}, "arm64", "Darwin")
    assert (row.mcpu, set(row.requires)) == (chip, {"asimd", "asimddp", *more})


@pytest.mark.parametrize(
    ("arch", "system"),
    [("x86_64", "Darwin"), ("riscv64", "Linux"), ("AMD64", "Windows"), ("arm64", "Windows")],
)
def test_a_kind_of_machine_without_presets_is_told_so(machine, arch, system):
    with pytest.raises(TargetError, match=f"there is no preset for .* {system}") as error:
        machine(V4, arch, system)
    assert "--target" in error.value.hint


def test_a_mac_names_its_chip_and_its_features_follow(monkeypatch):
    """As archspec detects it there: no features, the model's name."""
    chip = archspec.cpu.detect.partial_uarch(name="m1", vendor="Apple")
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: chip)
    assert missing_features(find_target("cpu-apple-m1").requires) == ()
    assert "i8mm" not in cpu_features()


@pytest.mark.parametrize("name", ["m2", "m3", "m4"])
def test_a_later_chip_of_a_mac_multiplies_matrices(monkeypatch, name):
    chip = archspec.cpu.detect.partial_uarch(name=name, vendor="Apple")
    monkeypatch.setattr(archspec.cpu.detect, "detected_info", lambda: chip)
    assert missing_features(find_target("cpu-apple-m2").requires) == ()


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
    row = find_target("cpu-test")
    assert set(row.requires) == V3 | {"avx_vnni"}
    assert row.mattr == ("avxvnni",)  # LLVM is told what mcpu does not imply


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(GOOD + "surprise = 1\n", id="an unknown key"),
        pytest.param(GOOD.replace("256", '"wide"'), id="a value of another type"),
        pytest.param(GOOD.replace('mcpu = "x86-64-v3"\n', ""), id="a key missing"),
        pytest.param(GOOD.replace("x86_64_v3", "x86_64_v9"), id="an unknown level"),
        pytest.param(GOOD.replace('backend = "cpu"', 'backend = "tpu"'), id="an unknown backend"),
        pytest.param("about = [", id="not TOML"),
        pytest.param(GOOD.replace('["avx_vnni"]', "[{}]"), id="no name of a feature"),
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
    assert {*EXTRA_FEATURES, *INT8_DOT_FEATURES, *BF16_TILE_FEATURES} <= known


def test_a_row_survives_json():
    row = find_target("cpu-sapphirerapids")
    assert msgspec.json.decode(msgspec.json.encode(row), type=type(row)) == row


# ---- variants ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["cpu-x86-64-v2+v3+v4", "cpu-x86-64-v4+v3+v2", "cpu-x86-64-v3+cpu-x86-64-v2+v4"]
)
def test_variants_are_ordered_by_what_they_require_however_typed(name):
    target = find_target(name)
    assert target.name == name
    assert [row.mcpu for row in target.libraries] == ["x86-64-v2", "x86-64-v3", "x86-64-v4"]
    assert [row.library for row in target.libraries] == [
        f"lib-cpu-x86-64-v{level}.so" for level in (2, 3, 4)
    ]
    assert set(target.requires) == V2


def test_tiles_are_a_variant_of_their_own():
    target = find_target("cpu-sapphirerapids+x86-64-v3+v4")
    assert [row.bf16_tiles for row in target.libraries] == [False, False, True]
    assert not target.bf16_tiles
    assert [name for name in PRESETS if find_target(name).bf16_tiles] == ["cpu-sapphirerapids"]


def test_variants_of_macs_are_one_artifact():
    rows = find_target("cpu-apple-m1+m2").libraries
    assert [row.library for row in rows] == ["lib-cpu-apple-m1.dylib", "lib-cpu-apple-m2.dylib"]


@pytest.mark.parametrize(
    ("name", "plainest"),
    [
        ("cpu-aarch64+dotprod+i8mm", "cpu-aarch64"),
        ("cpu-aarch64-i8mm+dotprod+cpu-aarch64", "cpu-aarch64"),
        ("cpu-android-arm64+i8mm+dotprod", "cpu-android-arm64"),
    ],
)
def test_variants_of_arm_are_ordered_alike_and_of_one_system(name, plainest):
    rows = find_target(name).libraries
    assert [row.name for row in rows] == [plainest, f"{plainest}-dotprod", f"{plainest}-i8mm"]


def test_a_variant_s_library_keeps_the_system_s_suffix(presets):
    mac = GOOD + 'library = "lib.dylib"\n'
    presets(mac.replace('["avx_vnni"]', "[]"), "cpu-plain")
    presets(mac, "cpu-more")
    rows = find_target("cpu-more+plain").libraries
    assert [row.library for row in rows] == ["lib-cpu-plain.dylib", "lib-cpu-more.dylib"]


def test_variants_of_which_none_is_the_better_are_refused(presets):
    presets(GOOD, "cpu-one")
    presets(GOOD.replace('["avx_vnni"]', '["avx512_vnni"]'), "cpu-other")
    presets(GOOD, "cpu-same")
    for name in ("cpu-one+other", "cpu-one+same"):
        with pytest.raises(ConfigError, match="must require all CPU features of the other") as e:
            find_target(name)
        assert "comma" in e.value.hint


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cpu-x86-64-v3+v3", "names a target twice"),
        ("cpu-x86-64-v3+cpu-aarch64", "must agree on triple"),
        ("cpu-x86-64-v3+v9", "no target 'v9'"),
        ("cuda-sm80+cuda-sm90", "variants are for CPUs"),
    ],
)
def test_variants_that_cannot_be_are_refused(name, told):
    with pytest.raises(ConfigError, match=told):
        find_target(name)


@pytest.mark.parametrize(
    ("name", "feature"),
    [
        ("cpu-x86-64-v2", None),
        ("cpu-x86-64-v3", "avx2"),
        ("cpu-x86-64-v4", "avx512bw"),
        ("cpu-sapphirerapids", "avx512_vnni"),
        ("cpu-aarch64", None),
        ("cpu-aarch64-dotprod", "asimddp"),
        ("cpu-aarch64-i8mm", "asimddp"),
        ("cpu-apple-m1", "asimddp"),
    ],
)
def test_the_best_int8_dot_product_of_a_row_is_known_by_its_feature(name, feature):
    assert find_target(name).int8_dot == feature


@pytest.mark.parametrize(
    ("machine", "system", "triple", "fits"),
    [
        ("x86_64", "Linux", "x86_64-unknown-linux-gnu", True),
        ("AMD64", "Windows", "x86_64-pc-windows-gnu", True),
        ("arm64", "Darwin", "arm64-apple-macos13.0", True),
        ("aarch64", "Linux", "aarch64-unknown-linux-gnu", True),
        ("aarch64", "Linux", "aarch64-linux-android", False),
        ("aarch64", "Linux", "arm64-apple-macos13.0", False),
        ("x86_64", "Linux", "aarch64-unknown-linux-gnu", False),
    ],
)
def test_a_triple_fits_its_own_machine_only(monkeypatch, machine, system, triple, fits):
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(platform, "system", lambda: system)
    assert (triple_mismatch(triple) is None) == fits
