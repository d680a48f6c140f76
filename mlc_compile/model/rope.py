"""Rotary position embedding as data, YaRN included, and its inverse frequencies.

A pair (x[i], x[i + head_dim/2]) at position p turns by p * inverse_frequencies[i]; both
cosine and sine are then multiplied by `attention_factor`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from mlc_compile.errors import CheckpointError, listing

Floats = NDArray[np.float32]
Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e6)]
Kind = Literal["default", "yarn"]

# Where a config may speak of rope: nested by transformers 5, or the older pair of a bare
# `rope_theta` and a `rope_scaling` table.
TABLES: Final = ("rope_parameters", "rope_scaling")


@dataclass(frozen=True, slots=True)
class Rope:
    """Angles of the rotation. `original_context` is the length before YaRN stretched it."""

    theta: float
    original_context: int  # tokens
    kind: Kind = "default"
    factor: float = 1.0  # native context times this is the longest that still makes sense
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0

    def inverse_frequencies(self, head_dim: int) -> Floats:
        """f32[head_dim // 2], in radians per token."""
        exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
        periods: Floats = np.float32(self.theta) ** exponents
        native: Floats = np.float32(1) / periods
        if self.kind == "default":
            return native
        stretched = np.float32(1) / (np.float32(self.factor) * periods)
        keep = np.float32(1) - self._ramp(head_dim)
        mixed: Floats = stretched * (np.float32(1) - keep) + native * keep
        return mixed

    def _ramp(self, head_dim: int) -> Floats:
        """0 where a pair turns fast enough to stay as it was, 1 where it is stretched."""
        low = max(math.floor(self._dimension(self.beta_fast, head_dim)), 0)
        high = min(math.ceil(self._dimension(self.beta_slow, head_dim)), head_dim - 1)
        width = np.float32(high - low or 0.001)  # as transformers does, against a division by zero
        ramp: Floats = (np.arange(head_dim // 2, dtype=np.float32) - np.float32(low)) / width
        return np.minimum(np.maximum(ramp, 0), 1).astype(np.float32)

    def _dimension(self, turns: float, head_dim: int) -> float:
        """The (fractional) dimension that makes `turns` rotations within the native context."""
        wavelengths = math.log(self.original_context / (turns * 2 * math.pi))
        return head_dim * wavelengths / (2 * math.log(self.theta))


class _Table(msgspec.Struct, frozen=True):
    """The keys of a rope table, all optional; what is absent elsewhere is checked by the reader."""

    rope_theta: Annotated[float, msgspec.Meta(gt=1, lt=1e30)] | None = None
    rope_type: str | None = None
    type: str | None = None  # the older spelling of rope_type
    factor: Positive | None = None
    original_max_position_embeddings: Annotated[int, msgspec.Meta(gt=0, lt=2**31)] | None = None
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    partial_rotary_factor: float | None = None


def read_rope(raw: Mapping[str, object], max_positions: int, where: str) -> Rope:
    """The rope of a whole config.json.

    `rope_theta` may stand at the top or in a table; two values must agree, and none is an
    error, since a guess would only show as nonsense text. Raises CheckpointError.
    """
    found = _merge(raw, where)
    unknown = sorted(set(found) - set(_Table.__struct_fields__))
    if unknown:
        raise CheckpointError(
            f"{where}: rope has unknown parameters: {listing(unknown)}", hint=_SUPPORTED
        )
    try:
        table = msgspec.convert(found, _Table)
    except msgspec.ValidationError as e:
        raise CheckpointError(f"{where}: rope parameters: {e}", hint=_SUPPORTED) from e
    if table.rope_theta is None:
        raise CheckpointError(
            f"{where}: rope_theta is missing, at the top level and in rope_parameters",
            hint="copy it from the original model's config.json; Qwen3 has 1000000",
        )
    if table.partial_rotary_factor not in {None, 1.0}:
        raise CheckpointError(
            f"{where}: partial_rotary_factor must be 1, got {table.partial_rotary_factor}",
            hint=_SUPPORTED,
        )
    return _rope(table, table.rope_theta, max_positions, where)


def _rope(table: _Table, theta: float, max_positions: int, where: str) -> Rope:
    kind = table.rope_type or table.type or "default"
    if kind == "default":
        return Rope(theta=theta, original_context=max_positions)
    if kind != "yarn":
        raise CheckpointError(f"{where}: rope_type {kind!r} is not supported", hint=_SUPPORTED)
    if table.factor is None or table.factor < 1.0:
        raise CheckpointError(
            f"{where}: rope_type 'yarn' needs a factor of at least 1, got {table.factor}",
            hint="the factor is the wanted context divided by the native one, for example 4.0",
        )
    return Rope(
        theta=theta,
        original_context=table.original_max_position_embeddings or max_positions,
        kind="yarn",
        factor=table.factor,
        attention_factor=table.attention_factor or 0.1 * math.log(table.factor) + 1.0,
        beta_fast=table.beta_fast or 32.0,
        beta_slow=table.beta_slow or 1.0,
    )


def _merge(raw: Mapping[str, object], where: str) -> dict[str, object]:
    """All rope keys in one table, whichever spelling they came in."""
    merged: dict[str, object] = {}
    if raw.get("rope_theta") is not None:
        merged["rope_theta"] = raw["rope_theta"]
    for name in TABLES:
        table = raw.get(name) or {}
        if not isinstance(table, Mapping):
            raise CheckpointError(
                f"{where}: {name} must be an object, got {table!r}", hint=_SUPPORTED
            )
        for key, value in table.items():
            if merged.setdefault(key, value) != value:
                raise CheckpointError(
                    f"{where}: two values for {key}: {merged[key]!r} and {value!r} (in {name})",
                    hint="keep the one the model was trained with",
                )
    return merged


_SUPPORTED: Final = "this version knows plain rope and YaRN over the whole head"
