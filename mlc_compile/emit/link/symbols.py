"""Which functions a library may leave to others: TVM's C interface, the C library, its math part.

Names are C's: without the underscore that Mach-O puts in front.
"""

from typing import Final

from mlc_compile.target import System

# What TVM's code generator calls of libtvm_ffi.
FFI: Final = frozenset(
    {
        "TVMFFIEnvModLookupFromImports",
        "TVMFFIEnvModRegisterSystemLibSymbol",
        "TVMFFIErrorSetRaisedFromCStrParts",
        "TVMFFIFunctionCall",
        "TVMFFIHandleInitOnce",
    }
)

# What LLVM makes of loops and copies, and what of float operations no instruction does.
MEMORY: Final = frozenset({"memcmp", "memcpy", "memmove", "memset"})
_FLOAT: Final = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf exp exp2 expm1 fabs "
    "floor fma fmax fmin fmod frexp hypot ldexp log log10 log1p log2 nearbyint pow rint round "
    "sin sinh sqrt tan tanh trunc"
)
MATH: Final = frozenset(name + kind for name in _FLOAT.split() for kind in ("", "f"))
SINCOS: Final = frozenset({"sincos", "sincosf"})  # GNU's, and bionic's

# Names that only Darwin's libSystem has, all of them older than the macOS and iOS we ask for.
_DARWIN: Final = frozenset(
    {
        "__exp10",
        "__exp10f",
        "__extendhfsf2",
        "__sincos_stret",
        "__sincosf_stret",
        "__truncdfhf2",
        "__truncsfhf2",
        "bzero",
        "dyld_stub_binder",
        "memset_pattern16",
        "memset_pattern4",
        "memset_pattern8",
    }
)

# By system, what else than FFI a library may ask for where no symbol version or import table
# tells who has it.
OF_SYSTEM: Final[dict[System, frozenset[str]]] = {
    "macos": MEMORY | MATH | _DARWIN,
    "ios": MEMORY | MATH | _DARWIN,
    "android": MEMORY | MATH | SINCOS,
}
