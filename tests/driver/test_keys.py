"""Keys: every input that can change a byte changes the key and is named; nothing else does."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from mlc_compile.artifact import Check, Manifest, read_manifest
from mlc_compile.cache import Stamps
from mlc_compile.driver import keys as module
from mlc_compile.driver.compile import prepare
from mlc_compile.driver.job import DEFAULTS, Options
from mlc_compile.driver.keys import CONVERTING, EMITTING, NOT_CODE, Keys
from mlc_compile.driver.subject import read_subject
from mlc_compile.driver.wheels import wheel_digest
from mlc_compile.emit.keeper import KernelSource
from mlc_compile.emit.link.linker import Linker
from mlc_compile.target import Target, find_target

V3 = "cpu-x86-64-v3"
LINKER = Linker("cc", ("cc", "-shared"))


@pytest.fixture(autouse=True)
def code(tmp_path, monkeypatch):
    """Stands for our package: editing the real one under a running test would be a miss."""
    package, configs = tmp_path / "package", tmp_path / "configs"
    for path in (
        *("artifact.py", "passes/fuse.py", "quant/int4.py", "cli/app.py", "model/qwen3.py"),
        *("driver/convert.py", "driver/lockfile.py"),
    ):
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text("")
    (configs / "targets").mkdir(parents=True)
    monkeypatch.setattr(module, "PACKAGE", package)
    return package


def library(model, target=V3, quant="q4f16_1", options=DEFAULTS, **changed):
    row = target if isinstance(target, Target) else find_target(target)
    job = prepare(read_subject(model), row, quant, options)
    job = dataclasses.replace(job, **{"linker": LINKER, **changed})
    return Keys(Stamps()).library(job)


def weights(model, quant="q4f16_1"):
    return Keys(Stamps()).weights(read_subject(model), quant)


def test_equal_inputs_give_equal_keys(nano):
    assert library(nano.path) == library(nano.path)
    assert weights(nano.path) == weights(nano.path)


# ---- what was decided --------------------------------------------------------------------

OPTIONS = {
    "context": (100, {"limits.context", "limits.prefill_chunk"}),
    "prefill_chunk": (64, {"limits.prefill_chunk"}),
    "kv_dtype": ("float32", {"kv.dtype"}),
    "activations": ("float32", {"activations"}),
    "disabled": (("FuseSwiGLU",), {"disabled"}),
}


def test_every_option_is_tried_here():
    tried = {*OPTIONS, "memory_budget"}
    assert tried == {field.name for field in dataclasses.fields(Options)}


def test_a_memory_budget_reaches_the_key_of_the_limits_that_it_decides(nano):
    job = prepare(read_subject(nano.path), find_target(V3), "q4f16_1", DEFAULTS)
    one, other = (Keys(Stamps()).limits(job, Options(memory_budget=n)) for n in (1, 2))
    assert one.differences(other) == ("options.memory_budget",)


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_reaches_the_library_s_key(nano, name):
    value, named = OPTIONS[name]
    changed = library(nano.path, options=Options(**{name: value}))
    assert set(changed.differences(library(nano.path))) == named


def test_an_option_that_says_the_default_is_no_change(nano):
    said = Options(context=512, prefill_chunk=512, kv_dtype="float16", activations="int8")
    assert library(nano.path, options=said) == library(nano.path)


def another(value):
    """Some other value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
        case tuple():
            return (*value, "more")
        case None:
            return "something"


@pytest.mark.parametrize("field", Target.__struct_fields__)
def test_every_field_of_a_target_reaches_the_library_s_key(nano, field):
    row = find_target(V3)
    job = prepare(read_subject(nano.path), row, "q4f16_1", DEFAULTS)
    value = (find_target("cpu-x86-64-v2"),) if field == "variants" else another(getattr(row, field))
    changed = dataclasses.replace(job, target=msgspec.structs.replace(row, **{field: value}))
    one, other = Keys(Stamps()).library(job), Keys(Stamps()).library(changed)
    differing = one.differences(other)
    assert differing
    assert all(name.startswith(f"target.{field}") for name in differing)


@pytest.mark.parametrize("field", Target.__struct_fields__)
def test_so_does_every_field_of_a_variant(nano, field):
    pair = find_target("cpu-x86-64-v3+v4")
    job = prepare(read_subject(nano.path), pair, "q4f16_1", DEFAULTS)
    last = pair.variants[-1]
    value = (find_target(V3),) if field == "variants" else another(getattr(last, field))
    odd = msgspec.structs.replace(last, **{field: value})
    changed = msgspec.structs.replace(pair, variants=(pair.variants[0], odd))
    one = Keys(Stamps()).library(job)
    other = Keys(Stamps()).library(dataclasses.replace(job, target=changed))
    assert one.differences(other)
    assert all(name.startswith(f"target.variants.1.{field}") for name in one.differences(other))


def test_the_scheme_reaches_the_keys(nano):
    assert "scheme" in weights(nano.path).differences(weights(nano.path, "q4f32_1"))
    assert "quant" in library(nano.path).differences(library(nano.path, quant="q4f32_1"))


# ---- the model ---------------------------------------------------------------------------


def test_every_file_of_the_model_reaches_the_keys(nano):
    before = weights(nano.path), library(nano.path)
    for path in sorted(nano.path.iterdir()):
        if path.suffix == ".safetensors":
            continue
        data = path.read_bytes()
        path.write_bytes(data + b"\n")  # still the same JSON
        after = weights(nano.path), library(nano.path)
        for one, other in zip(before, after, strict=True):
            assert one.differences(other) == (f"text.{path.name}",)
        path.write_bytes(data)


def test_one_weight_reaches_the_key_of_the_weights_and_not_the_library_s(nano):
    before = weights(nano.path), library(nano.path)
    with nano.tensors() as tensors:
        tensors["model.norm.weight"][3] ^= 1
    named = weights(nano.path).differences(before[0])
    assert named == ("checkpoint.model.safetensors",)
    assert library(nano.path) == before[1]


def test_the_tie_and_the_name_reach_the_keys(nano, tmp_path):
    before = library(nano.path)
    renamed = nano.path.rename(tmp_path / "other-name")
    assert library(renamed).differences(before) == ("model",)
    renamed.rename(nano.path)
    with nano.tensors() as tensors:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] ^ np.uint16(0x8000)
    with nano.config() as config:
        config["tie_word_embeddings"] = False
    assert "tied" in library(nano.path).differences(before)


def test_packed_and_proof_keys_name_what_they_are_about(nano_artifact):
    keys = Keys(Stamps())
    assert keys.packed("w", "p").differences(keys.packed("v", "p")) == ("weights",)
    assert keys.packed("w", "p").differences(keys.packed("w", "q")) == ("plan",)
    manifest = read_manifest(nano_artifact, Manifest)
    proven = msgspec.structs.replace(manifest, check=Check(status="not run", reason="later"))
    assert keys.proof(manifest) == keys.proof(proven)  # the outcome is no part of the question
    other = msgspec.structs.replace(manifest, weights_digest="other")
    assert keys.proof(manifest).differences(keys.proof(other)) == ("artifact",)


def test_all_of_a_kernel_reaches_its_key():
    kernel = KernelSource(name="n", function="f", target="t", settings="s")
    one = Keys(Stamps()).kernel(kernel)
    for field in dataclasses.fields(KernelSource):
        other = Keys(Stamps()).kernel(dataclasses.replace(kernel, **{field.name: "x"}))
        assert one.differences(other) == (f"kernel.{field.name}",)


# ---- tools -------------------------------------------------------------------------------


def test_our_code_reaches_the_keys_that_it_may_change(nano, code):
    before = weights(nano.path), library(nano.path)

    def differ():
        return tuple(
            one.differences(other)
            for one, other in zip(before, (weights(nano.path), library(nano.path)), strict=True)
        )

    for path, expected in {
        "cli/app.py": ((), ()),
        "passes/fuse.py": ((), ("code",)),
        "quant/int4.py": (("code",), ("code",)),
        "driver/convert.py": (("code",), ("code",)),
        "driver/lockfile.py": ((), ("code",)),
        "../configs/targets/new.toml": ((), ()),  # a target's fields are in its own key
    }.items():
        (code / path).write_text("# changed\n")
        assert differ() == expected, path
        (code / path).write_text("")
    (code / "passes" / "new.py").write_text("")
    assert differ() == ((), ("code",))


def test_converting_and_packing_use_no_code_beyond_what_their_keys_cover(nano_checkpoint, tmp_path):
    code = (
        "import sys; from pathlib import Path\n"
        "from mlc_compile.driver.convert import convert\n"
        "from mlc_compile.driver import pack\n"
        f"convert(Path({str(nano_checkpoint)!r}), 'q4f16_1', Path({str(tmp_path / 'out')!r}))\n"
        "ours = (m for n, m in sys.modules.items() if n.partition('.')[0] == 'mlc_compile')\n"
        "print(*(m.__file__ for m in ours))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    package = Path(module.__file__).parents[1]
    used = [Path(name).relative_to(package).as_posix() for name in ran.stdout.split()]
    assert {"__init__.py", "quant/int4.py"} <= set(used)
    empty = {"runtime/__init__.py"}  # a docstring
    assert [
        name
        for name in used
        if not name.startswith(CONVERTING) and name not in {*empty, "target.py", "tvm_version.py"}
    ] == []


@pytest.mark.parametrize("path", sorted({*CONVERTING, *EMITTING, *NOT_CODE} - {"configs"}))
def test_what_the_keys_name_of_our_code_is_there(path):
    """A file that was renamed would else silently leave the keys."""
    assert (Path(module.__file__).parents[1] / path).exists()


def test_another_linker_reaches_the_library_s_key(nano, tmp_path, monkeypatch):
    one = library(nano.path)
    flags = Linker("cc", ("cc", "-shared", "-s"))
    assert library(nano.path, linker=flags).differences(one) == ("linker.arguments",)
    programs = []
    for name in ("a", "b"):
        program = tmp_path / name / "cc"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\n# {name}\necho version {name}\n")
        program.chmod(0o755)
        programs.append(library(nano.path, linker=Linker("cc", (str(program), "-shared"))))
    named = programs[0].differences(programs[1])
    assert set(named) == {"linker.program", "linker.version"}


def test_an_equal_linker_elsewhere_is_the_same(nano, tmp_path, monkeypatch):
    keys = []
    for name in ("a", "b"):
        program = tmp_path / name / "cc"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\necho version 1\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        module._tool_version.cache_clear()
        keys.append(library(nano.path))
    module._tool_version.cache_clear()
    assert keys[0] == keys[1]


def test_a_device_compiler_is_known_by_its_files_and_not_by_its_version_or_place(
    nano, tmp_path, monkeypatch
):
    def key(directory, **files):
        (tmp_path / directory).mkdir()
        programs = {name: tmp_path / directory / name for name in files}
        for name, path in programs.items():
            path.write_text(files[name])
        monkeypatch.setattr(module, "device_programs", lambda _target: programs)
        return library(nano.path, device_compiler="nvcc 13.0.88")

    one = key("a", nvcc="1", ptxas="1")
    assert key("b", nvcc="1", ptxas="1") == one
    for name in ("nvcc", "ptxas"):
        other = key(f"other {name}", **{"nvcc": "1", "ptxas": "1", name: "2"})
        assert other.differences(one) == (f"device_compiler.{name}",)
    monkeypatch.setattr(module, "device_programs", None)  # where nothing is compiled for a device
    assert not [part for part in library(nano.path).parts if part.startswith("device_compiler.")]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """`installed(record)`: the digest of a distribution whose RECORD is that."""
    info = tmp_path / "site" / "things-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: things\nVersion: 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def digest(record):
        (info / "RECORD").write_text("\n".join(record))
        wheel_digest.cache_clear()
        return wheel_digest("things")

    return digest


def test_a_wheel_is_its_content_and_not_its_environment(installed):
    base = ["things/a.py,sha256=aaa,1", "things/b.so,sha256=bbb,2"]
    first = installed(base)
    assert installed(base[::-1]) == first
    noise = ["../../../bin/things,sha256=shebang,9", "things-1.dist-info/INSTALLER,sha256=pip,3"]
    assert installed([*base, *noise, "things/__pycache__/a.cpython-311.pyc,,"]) == first
    assert installed(["things/a.py,sha256=aab,1", base[1]]) != first
    assert installed(base[:1]) != first


def test_the_compiler_s_wheels_are_in_the_keys(nano):
    wheels = {name for name in library(nano.path).parts if name.startswith("wheel.")}
    assert {"wheel.apache-tvm", "wheel.apache-tvm-ffi", "wheel.numpy"} <= wheels
    assert "wheel.numpy" in weights(nano.path).parts
    assert {"wheel.numpy", "wheel.msgspec"} <= Keys(Stamps()).packed("w", "p").parts.keys()
    assert all(len(library(nano.path).parts[name]) == 64 for name in wheels)


# ---- what is not in them -----------------------------------------------------------------

PRINT = """
import sys
from pathlib import Path
from mlc_compile.cache import Stamps
from mlc_compile.driver.compile import prepare
from mlc_compile.driver.job import DEFAULTS
from mlc_compile.driver import keys as module
from mlc_compile.driver.subject import read_subject
from mlc_compile.target import find_target

module.PACKAGE = Path(sys.argv[2])
subject = read_subject(Path(sys.argv[1]))
job = prepare(subject, find_target("cpu-x86-64-v3"), "q4f16_1", DEFAULTS)
keys = module.Keys(Stamps())
print(keys.library(job).digest, keys.weights(subject, "q4f16_1").digest)
"""


def test_directories_locale_environment_and_seeds_are_not_in_the_keys(nano, tmp_path, code):
    (tmp_path / "far").mkdir()
    moved = tmp_path / "far" / nano.path.name
    told = set()
    for model, env in (
        (nano.path, {"LC_ALL": "C", "PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "1"}),
        (moved, {"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2", "TVM_NUM_THREADS": "7", "TZ": "UTC"}),
    ):
        if model == moved:
            nano.path.rename(moved)
        ran = subprocess.run(
            [sys.executable, "-c", PRINT, model, code],
            env=os.environ | env,
            cwd=model.parent,
            capture_output=True,
            text=True,
            check=True,
        )
        told.add(ran.stdout)
    assert len(told) == 1
