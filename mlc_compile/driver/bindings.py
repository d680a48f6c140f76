"""Whether a GPU's kernels see whole buffers: of one, an API may show less than memory holds.

What is too large is named as people know it, the weight or the cache; `schedule.limits` would
name an argument of a kernel, and could not tell of those whose size is known at run time.
"""

from mlc_compile.artifact import FlatKV, Limits, WeightPlan
from mlc_compile.errors import TargetError
from mlc_compile.target import Target


def require_whole_weights(plan: WeightPlan, target: Target) -> None:
    """TargetError names the largest part of a weight if no kernel would see it whole."""
    most = _most(target)
    parts = [part for tensor in plan.tensors for part in tensor.parts]
    largest = max(parts, key=lambda part: part.nbytes, default=None)
    if most is not None and largest is not None and largest.nbytes > most:
        raise TargetError(
            f"target {target.name}: {largest.name} has {largest.nbytes:,} bytes, but a kernel of "
            f"the device sees {most:,} bytes of a buffer at most",
            hint="choose a target whose devices show more, or a smaller model",
        )


def require_whole_cache(kv: FlatKV, limits: Limits, target: Target) -> None:
    """TargetError if the context's keys and values of a layer, one buffer, are too large."""
    most = _most(target)
    if most is None or target.kv != "tvm_paged":
        return
    spare = kv.page  # tokens: TVM's cache has a page more than the context fills
    needed = kv.nbytes(limits.context + spare) // kv.layers
    if needed > most:
        fitting = (most * kv.layers // kv.nbytes(1) - 1) * kv.page
        raise TargetError(
            f"target {target.name}: the KV cache of a layer takes {needed:,} bytes for a context "
            f"of {limits.context:,} tokens, but a kernel of the device sees {most:,} bytes of a "
            "buffer at most",
            hint=f"use --context {fitting} or less, or a target whose devices show more",
        )


def _most(target: Target) -> int | None:
    return None if target.device is None else target.device.binding_bytes
