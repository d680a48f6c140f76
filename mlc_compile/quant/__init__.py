"""How weights are stored: the schemes by name, and which of them holds a given matrix."""

from typing import Final

from mlc_compile.errors import ConfigError, near_matches
from mlc_compile.layout import GROUP
from mlc_compile.quant.int4 import Int4Group
from mlc_compile.quant.plain import Plain
from mlc_compile.quant.scheme import NormDtype, Scheme

SCHEMES: Final[dict[str, Scheme]] = {
    "q0f32": Plain("q0f32", norm_dtype="float32"),
    "q0f16": Plain("q0f16", norm_dtype="float16"),
    "q4f16_1": Int4Group("q4f16_1", norm_dtype="float16"),
    "q4f32_1": Int4Group("q4f32_1", norm_dtype="float32"),
}

CODES: Final = "q_weight"  # the part that holds a quantized matrix's integers

UNQUANTIZED: Final[dict[NormDtype, Scheme]] = {
    "float32": SCHEMES["q0f32"],
    "float16": SCHEMES["q0f16"],
}


def find_scheme(name: str) -> Scheme:
    """The scheme called `name`; ConfigError with near matches if there is none."""
    if name not in SCHEMES:
        raise ConfigError(f"no quantization scheme {name!r}", hint=near_matches(name, SCHEMES))
    return SCHEMES[name]


def scheme_for(scheme: Scheme, n: int, k: int) -> tuple[Scheme, str | None]:
    """What holds an [n, k] matrix under `scheme`: itself, or the unquantized one and why."""
    reason = scheme.applies(n, k)
    return (scheme, None) if reason is None else (UNQUANTIZED[scheme.norm_dtype], reason)


def has_codes(scheme: Scheme) -> bool:
    """Whether the scheme stores integers, which kernels can multiply as such."""
    return CODES in scheme.parts(1, GROUP)


def part_name(weight: str, suffix: str) -> str:
    """The stored tensor's name: the checkpoint's, its last component replaced by `suffix`."""
    return f"{weight.removesuffix('.weight')}.{suffix}"
