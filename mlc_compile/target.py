"""What we compile for: one frozen row per target, read from `configs/targets/*.toml`.

A target is a device and a host triple. Passes, rules and emitters read its fields; the
name of a backend is compared nowhere else. CPU features are spelled as the Linux kernel
spells them in /proc/cpuinfo (`avx512_vnni`), which is also archspec's spelling.
"""

import platform
import tomllib
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import archspec.cpu
import archspec.cpu.detect
import msgspec

from mlc_compile.amx import tiles_granted
from mlc_compile.errors import ConfigError, DamageError, TargetError, listing, near_matches

VARIANT: Final = "+"
HOST: Final = "cpu"  # the target that means "this machine"

# Features beyond a level that our kernels or LLVM use: kernel spelling -> LLVM spelling.
EXTRA_FEATURES: Final = {
    "avx512_vnni": "avx512vnni",
    "avx512_fp16": "avx512fp16",
    "avx_vnni": "avxvnni",
    "amx_bf16": "amx-bf16",
    "amx_tile": "amx-tile",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
}

# Those that multiply int8 by four and add, best first: what `schedule.kernels.dot` writes with.
INT8_DOT_FEATURES: Final = ("avx512_vnni", "avx512bw", "avx_vnni", "avx2", "asimddp")

TILES: Final = "amx_"  # how the features of tile registers begin

# Those that multiply tiles of bfloat16: what `schedule.kernels.tiles` writes with.
BF16_TILE_FEATURES: Final = ("amx_bf16", "amx_tile")

# (platform.system(), instruction set) -> the presets for such a machine, best first.
HOST_ROWS: Final = {
    ("Linux", "x86_64"): (
        "cpu-sapphirerapids",
        "cpu-x86-64-v4",
        "cpu-x86-64-v3",
        "cpu-x86-64-v2",
    ),
    ("Linux", "aarch64"): ("cpu-aarch64-i8mm", "cpu-aarch64-dotprod", "cpu-aarch64"),
    ("Darwin", "aarch64"): ("cpu-apple-m2", "cpu-apple-m1"),
}

ARCHS: Final = {"arm64": "aarch64", "amd64": "x86_64"}  # other names of an instruction set

# How the system part of a triple begins -> platform.system(); the first that matches decides,
# and Android's `linux-android` must not pass for Linux.
SYSTEMS: Final = (
    ("android", "Android"),
    ("linux", "Linux"),
    ("macos", "Darwin"),
    ("darwin", "Darwin"),
    ("ios", "iOS"),
    ("windows", "Windows"),
    ("wasm", "browsers"),
)


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a GPU lets one kernel do: the limits that schedules are sized by.

    A row states what every device it stands for has; where the API asks a device, that is
    the least that its specification promises or that the row's `about` names.
    """

    archs: tuple[str, ...] = ()  # CUDA's compute capabilities: the library has code for each
    threads: int  # the most in a block
    shared_bytes: int  # the most shared memory of a block
    subgroup: int = 1  # threads that step together and may shuffle; 1: none may be assumed
    f16: bool  # float16 in memory and in arithmetic
    int8: bool  # 8-bit storage
    tensor_cores: bool = False  # CUDA's wmma, PTX's m16n8k16 in float16, cp.async: from sm_80 on
    simdgroup_matrices: bool = False  # Metal's, of 8 x 8, float16 and float32
    buffers: int | None = None  # the most that a kernel may take; None: enough
    binding_bytes: int | None = None  # the most of one buffer that a kernel sees; None: enough
    grid: int = 65535  # the most blocks along x
    cores: int = 16  # that run blocks side by side, for estimates: a GPU may have any number
    in_place: bool = True  # whether a kernel may write a buffer that another argument reads


Backend = Literal["cpu", "cuda", "metal", "vulkan", "webgpu"]
KVKind = Literal["flat", "tvm_paged"]  # plain tensors; an object of TVM's runtime
System = Literal["linux", "macos", "ios", "windows", "android", "web"]


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One row: the host that loads the library and, for a GPU, the device that computes.

    Sizes are in bits where the name says so. `mcpu`, `mattr` and `requires` are the host's.
    """

    name: str
    about: str
    backend: Backend
    triple: str  # LLVM's: arch-vendor-os-abi
    system: System
    zig: str  # zig's name of the triple, with the oldest libc or macOS that will do
    mcpu: str
    mattr: tuple[str, ...] = ()  # beyond what mcpu implies, LLVM's spelling
    requires: tuple[str, ...] = ()  # CPU features without which the library must not run
    device: Device | None = None  # None: the host's CPU computes
    vector_bits: int = 128
    vector_registers: int = 16
    cores: int = 16  # that share a kernel, for estimates: the machine may have any number
    l2_bytes: int = 262144  # of a core's own cache, or its part of one that cores share
    streams: int = 1  # places a decoding thread reads side by side: weights, keys and values
    ask_bytes: int = 0  # ahead of its reading, decoding asks for weights; 0: the CPU does by itself
    quant: str = "q4f16_1"  # the scheme where none is asked for
    layout: str = "rows16"  # how weights are packed: a key of layout.LAYOUTS
    kv: KVKind = "flat"
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
    def register_bytes(self) -> int:
        """Of all vector registers together."""
        return self.vector_registers * self.vector_bits // 8

    @property
    def arch(self) -> str:
        """The instruction set: the first part of the triple."""
        return self.triple.split("-", maxsplit=1)[0]

    @property
    def arena(self) -> bool:
        """Whether kernels take tensors that begin inside a buffer: where a pointer can."""
        return self.device is None

    @property
    def in_place(self) -> bool:
        """Whether a kernel may write a buffer that another of its arguments reads."""
        return self.device is None or self.device.in_place

    @property
    def binding_bytes(self) -> int | None:
        """The most of one buffer that a kernel sees; None: all of it."""
        return None if self.device is None else self.device.binding_bytes

    @property
    def page_runs(self) -> bool:
        """Whether a page's JavaScript runs the library, by functions that it looks up itself."""
        return self.system == "web"

    @property
    def int8_dot(self) -> str | None:
        """The best of INT8_DOT_FEATURES that every CPU of the row has; None: float32 only."""
        if self.device is not None:
            return None
        return next((f for f in INT8_DOT_FEATURES if f in self.requires), None)

    @property
    def bf16_tiles(self) -> bool:
        """Whether every CPU of the row multiplies tiles of bfloat16."""
        return self.device is None and set(BF16_TILE_FEATURES) <= set(self.requires)


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
    row = find_target(first)
    typed = [row, *(find_target(_completed(piece, row.triple)) for piece in rest)]
    if len({row.name for row in typed}) != len(typed):
        raise ConfigError(f"{name} names a target twice", hint="name each variant once")
    rows = sorted(typed, key=lambda row: len(row.requires))
    for plainer, better in pairwise(rows):
        _check_pair(plainer, better)
    named = tuple(msgspec.structs.replace(row, library=_library_of(row)) for row in rows)
    return msgspec.structs.replace(rows[0], name=name, variants=named)


def _check_pair(plainer: Target, better: Target) -> None:
    """ConfigError unless one artifact can hold both, and it is clear which a CPU loads."""
    apart = "build them apart, separated by a comma"
    shared = [(row.triple, row.layout, row.kv) for row in (plainer, better)]
    if shared[0] != shared[1]:
        raise ConfigError(
            f"{better.name} cannot share an artifact with {plainer.name}: "
            "variants must agree on triple, weight layout and KV cache",
            hint=apart,
        )
    if plainer.device is not None or better.device is not None:
        raise ConfigError(
            f"{better.name} cannot share an artifact with {plainer.name}: "
            "variants are for CPUs, of which the best is chosen at load",
            hint=f"{apart}; cuda-multi has code for several GPUs in one library",
        )
    if not set(plainer.requires) < set(better.requires):
        raise ConfigError(
            f"{better.name} cannot share an artifact with {plainer.name}: of two variants one "
            "must require all CPU features of the other, and more",
            hint=apart,
        )


def _library_of(variant: Target) -> str:
    """`lib.so` -> `lib-cpu-x86-64-v3.so`."""
    plain = Path(variant.library)
    return f"{plain.stem}-{variant.name}{plain.suffix}"


def _completed(piece: str, triple: str) -> str:
    """The preset that `piece` is, or ends for `triple`; itself if there is none, for the error."""
    rows = _rows()
    ending = [
        name for name, row in rows.items() if name.endswith(f"-{piece}") and row.triple == triple
    ]
    return piece if piece in rows or len(ending) != 1 else ending[0]


def cpu_features() -> frozenset[str]:
    """The features of the CPU we run on, as the operating system reports them.

    macOS names the chip of an Apple computer and no features: they are those of its model.
    Tiles that Linux does not let this process use are as good as none.
    """
    found = archspec.cpu.detect.detected_info()
    known = archspec.cpu.TARGETS.get(found.name)
    features = frozenset(found.features or (known.features if known else ()))
    tiles = frozenset(f for f in features if f.startswith(TILES))
    return features if not tiles or tiles_granted() else features - tiles


@cache
def host_target() -> Target:
    """A row for this machine: the highest level it meets, plus the extras it has.

    A level and explicit extras, not LLVM's name for the CPU: a hypervisor may hide
    features that the name would imply.
    """
    features = cpu_features()
    base = _host_row(features)
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


def triple_mismatch(triple: str) -> str | None:
    """Why code for `triple` cannot run here, e.g. "it is for aarch64 Linux, ..."; None: it can."""
    arch, _, rest = triple.partition("-")
    parts = rest.split("-")
    system = next(
        (name for start, name in SYSTEMS if any(p.startswith(start) for p in parts)), rest
    )
    here = _this_machine()
    if (system, ARCHS.get(arch, arch)) == here:
        return None
    return f"it is for {arch} {system}, this machine is {here[1]} {here[0]}"


def _this_machine() -> tuple[str, str]:
    """System and instruction set, as HOST_ROWS spells them."""
    machine = platform.machine().lower()
    return platform.system(), ARCHS.get(machine, machine)


def _host_row(features: frozenset[str]) -> Target:
    """The first preset for this kind of machine whose features it has."""
    here = _this_machine()
    rows = [_rows()[name] for name in HOST_ROWS.get(here, ())]
    if not rows:
        raise TargetError(f"there is no preset for {here[1]} {here[0]}", hint=_ELSEWHERE)
    for row in rows:
        if features.issuperset(row.requires):
            return row
    oldest = rows[-1]
    missing = [f for f in oldest.requires if f not in features]
    raise TargetError(
        f"this CPU is below {oldest.name}, the oldest that we compile for: "
        f"it lacks {listing(missing)}",
        hint=_ELSEWHERE,
    )


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
    """One preset.

    `level` names an archspec microarchitecture, whose features mcpu must imply; what `requires`
    adds to them is told to LLVM.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        level, added = table.pop("level", None), table.pop("requires", [])
        implied = sorted(archspec.cpu.TARGETS[level].features) if level else []
        mattr = [
            *table.pop("mattr", []),
            *(EXTRA_FEATURES[f] for f in added if f in EXTRA_FEATURES),
        ]
        row = {"name": path.stem, **table, "mattr": mattr, "requires": [*implied, *added]}
        return msgspec.convert(row, Target)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError, KeyError, TypeError) as e:
        raise ConfigError(f"{path}: {e}", hint="see the fields of mlc_compile.target.Target") from e


_ELSEWHERE: Final = (
    "name a target, for example --target cpu-x86-64-v3, and run the result elsewhere"
)
