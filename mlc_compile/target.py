"""What we compile for: one frozen row per target, read from `configs/targets/*.toml`.

A target is a device and a host triple. Passes, rules and emitters read its fields; the
name of a backend is compared nowhere else. CPU features are spelled as the Linux kernel
spells them in /proc/cpuinfo (`avx512_vnni`), which is also archspec's spelling.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Final, Literal

import archspec.cpu
import archspec.cpu.detect
import msgspec

from mlc_compile.errors import ConfigError, DamageError, TargetError, near_matches

VARIANT: Final = "+"
HOST: Final = "cpu"  # the target that means "this machine"

# Features beyond a level that our kernels or LLVM can use: kernel spelling -> LLVM spelling.
EXTRA_FEATURES: Final = {
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512vbmi": "avx512vbmi",
    "avx_vnni": "avxvnni",
    "amx_tile": "amx-tile",
    "amx_int8": "amx-int8",
    "amx_bf16": "amx-bf16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "fphp": "fullfp16",
}

X86_LEVELS: Final = ("x86_64_v4", "x86_64_v3", "x86_64_v2")  # best first


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row. Sizes are in bits where the name says so."""

    name: str
    about: str
    backend: Literal["cpu"]
    triple: str  # LLVM's: arch-vendor-os-abi
    system: Literal["linux", "macos"]
    zig: str  # zig's name of the triple, with the oldest libc or macOS that will do
    mcpu: str
    mattr: tuple[str, ...] = ()  # beyond what mcpu implies, LLVM's spelling
    requires: tuple[str, ...] = ()  # CPU features without which the library must not run
    vector_bits: int
    vector_registers: int
    layout: str = "rows16"  # how weights are packed: a key of layout.LAYOUTS
    kv: Literal["flat", "tvm_paged"] = "flat"
    compute_dtype: Literal["float32"] = "float32"
    library: str = "lib.so"  # file name of the shared library
    variants: tuple["Target", ...] = ()  # rows that share one artifact: a library for each

    @property
    def libraries(self) -> tuple["Target", ...]:
        """The rows to compile for, plainest first: the variants, or this row alone."""
        return self.variants or (self,)

    @property
    def f32_lanes(self) -> int:
        """float32 values in one vector register."""
        return self.vector_bits // 32

    @property
    def arch(self) -> str:
        """The instruction set: the first part of the triple."""
        return self.triple.split("-", maxsplit=1)[0]


def target_names() -> tuple[str, ...]:
    """Every name `--target` accepts, this machine first."""
    return (HOST, *sorted(_rows()))


def find_target(name: str) -> Target:
    """The row called `name`; `cpu` is worked out from the machine we run on.

    `a+b` stands for one artifact with a library for each, over one weight file; after the
    first name a suffix will do: `cpu-x86-64-v3+v4`.
    """
    if VARIANT in name:
        return _variants(name)
    if name == HOST:
        return host_target()
    rows = _rows()
    if name not in rows:
        raise ConfigError(f"no target {name!r}", hint=near_matches(name, target_names()))
    return rows[name]


def _variants(name: str) -> Target:
    first, *rest = name.split(VARIANT)
    rows = [find_target(first), *(find_target(_completed(piece)) for piece in rest)]
    base = rows[0]
    for row in rows[1:]:
        if (row.triple, row.layout, row.kv) != (base.triple, base.layout, base.kv):
            raise ConfigError(
                f"{row.name} cannot share an artifact with {base.name}: "
                "variants must agree on triple, weight layout and KV cache",
                hint="build them apart, separated by a comma",
            )
    named = tuple(
        msgspec.structs.replace(row, library=f"{Path(row.library).stem}-{row.name}.so")
        for row in rows
    )
    if len({row.name for row in named}) != len(named):
        raise ConfigError(f"{name} names a target twice", hint="name each variant once")
    return msgspec.structs.replace(base, name=name, variants=named)


def _completed(piece: str) -> str:
    """The preset that `piece` is, or ends; itself where there is no such one, for the error."""
    rows = _rows()
    ending = [row for row in rows if row.endswith(f"-{piece}")]
    return piece if piece in rows or len(ending) != 1 else ending[0]


def cpu_features() -> frozenset[str]:
    """The features of the CPU we run on, as the operating system reports them."""
    return frozenset(archspec.cpu.detect.detected_info().features)


@cache
def host_target() -> Target:
    """A row for this machine: the highest level it meets, plus the extras it has.

    A level and explicit extras, not LLVM's name for the CPU: a hypervisor may hide
    features that the name would imply.
    """
    features = cpu_features()
    base = _rows()[_host_row(features)]
    extras = tuple(sorted(f for f in EXTRA_FEATURES if f in features and f not in base.requires))
    return msgspec.structs.replace(
        base,
        name=HOST,
        about="this machine",
        mattr=(*base.mattr, *(EXTRA_FEATURES[f] for f in extras)),
        requires=tuple(sorted({*base.requires, *extras})),
    )


def missing_features(required: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `required` that this CPU lacks, in order."""
    have = cpu_features()
    return tuple(f for f in required if f not in have)


def config_dir() -> Path:
    """Where `configs/` is: inside an installed wheel, or beside the package in a checkout."""
    inside = Path(__file__).parent / "configs"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "configs"


def _host_row(features: frozenset[str]) -> str:
    machine = archspec.cpu.host().family.name
    if machine == "aarch64":
        return "cpu-apple-m1" if _is_mac() else "cpu-aarch64"
    for level in X86_LEVELS:
        if archspec.cpu.TARGETS[level].features <= features:
            return "cpu-" + level.replace("_64_", "-64-")
    raise TargetError(
        f"this CPU ({machine}) is below x86-64-v2, the oldest level we compile for",
        hint="name a target explicitly, for example --target cpu-x86-64-v3, and run elsewhere",
    )


def _is_mac() -> bool:
    import platform

    return platform.system() == "Darwin"


@cache
def _rows() -> dict[str, Target]:
    files = sorted((config_dir() / "targets").glob("*.toml"))
    if not files:
        raise DamageError(
            f"no target presets under {config_dir()}",
            hint="reinstall mlc-compile: its configs/ is gone",
        )
    return {path.stem: _read_row(path) for path in files}


def _read_row(path: Path) -> Target:
    """One preset. `level` names an archspec microarchitecture whose features it requires."""
    try:
        table = tomllib.loads(path.read_text())
        level = table.pop("level", None)
        required = sorted(archspec.cpu.TARGETS[level].features) if level else []
        row = {"name": path.stem, **table, "requires": [*required, *table.get("requires", [])]}
        return msgspec.convert(row, Target)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, KeyError) as e:
        raise ConfigError(f"{path}: {e}", hint="see the fields of mlc_compile.target.Target") from e
