"""What a browser's GPU must offer for an artifact, in WebGPU's own names.

web-llm asks for some limits whatever the model is, and for larger ones only where the device
has all of what it would like; both are of the version that `web_llm` pins.
"""

from typing import Final

from mlc_compile.artifact import Manifest
from mlc_compile.errors import ConfigError
from mlc_compile.target import find_target

F16: Final = "shader-f16"
THREADS: Final = "maxComputeInvocationsPerWorkgroup"
MIB: Final = 1 << 20

# What web-llm asks every device for; without it there is no page.
ASKED: Final = {
    "maxStorageBuffersPerShaderStage": 10,
    "maxComputeWorkgroupStorageSize": 32768,
    THREADS: 256,
}
# Sizes of buffers: what it settles for, and what it asks for first; it takes nothing between.
BUFFERS: Final = {
    "maxBufferSize": (256 * MIB, 1024 * MIB),
    "maxStorageBufferBindingSize": (128 * MIB, 1024 * MIB),
}
LEAST: Final = {**ASKED, **{name: settled for name, (settled, _) in BUFFERS.items()}}


def required_features(manifest: Manifest) -> tuple[str, ...]:
    """WebGPU features without which the shaders do not compile."""
    dtypes = {part.dtype for tensor in manifest.plan.tensors for part in tensor.parts}
    return (F16,) if "float16" in {*dtypes, manifest.kv.dtype} else ()


def required_limits(manifest: Manifest) -> dict[str, int]:
    """The least of each WebGPU limit: web-llm's demands, and those of weights and kernels."""
    largest = max(
        (part.nbytes for tensor in manifest.plan.tensors for part in tensor.parts), default=0
    )
    buffers = {name: asked for name, (settled, asked) in BUFFERS.items() if largest > settled}
    threads = max(LEAST[THREADS], _threads(manifest.target))
    return {**LEAST, THREADS: threads, **buffers}


def _threads(target: str) -> int:
    """The most threads that kernels of a target have in a workgroup; 0: nothing is known."""
    try:
        device = find_target(target).device
    except ConfigError:  # a preset of another version
        return 0
    return 0 if device is None else device.threads
