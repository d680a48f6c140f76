"""The border between a wasm library and the page that loads it: names, and whose they are.

The page is web-llm's JavaScript, which has TVM's inside it. It instantiates the module with the
functions of IMPORTS and no others, and looks up those of EXPORTS; both lists belong to the
versions in WEB_LLM and `tvm_version.PINS`.
"""

from typing import Final

WEB_LLM: Final = "0.2.86"  # of the npm package @mlc-ai/web-llm that the lists were read from
MODULES: Final = ("env", "wasi_snapshot_preview1")

# By module, what the page provides.
IMPORTS: Final[dict[str, frozenset[str]]] = {
    "env": frozenset(
        {
            "TVMFFIWasmFunctionDeleter",
            "TVMFFIWasmSafeCall",
            "__cxa_thread_atexit",
            "emscripten_notify_memory_growth",
        }
    ),
    "wasi_snapshot_preview1": frozenset(
        {
            "clock_time_get",
            "environ_get",
            "environ_sizes_get",
            "fd_close",
            "fd_read",
            "fd_seek",
            "fd_write",
            "proc_exit",
        }
    ),
}

# What the page calls by name, beside what the linker exports by itself.
FUNCTIONS: Final = (
    "TVMFFIAnyViewToOwnedAny",
    "TVMFFIDataTypeFromString",
    "TVMFFIDataTypeToString",
    "TVMFFIErrorMoveFromRaised",
    "TVMFFIErrorSetRaisedFromCStr",
    "TVMFFIFunctionCall",
    "TVMFFIFunctionCreate",
    "TVMFFIFunctionGetGlobal",
    "TVMFFIFunctionSetGlobal",
    "TVMFFIGetTypeInfo",
    "TVMFFIObjectDecRef",
    "TVMFFIObjectIncRef",
    "TVMFFITypeKeyToIndex",
    "TVMFFIWasmFunctionCreate",
    "TVMFFIWasmGetLastError",
    "TVMWasmAllocSpace",
    "TVMWasmFreeSpace",
    "free",
    "malloc",
)
EXPORTS: Final = frozenset({*FUNCTIONS, "_initialize", "memory"})
