"""What an artifact costs in memory and in memory traffic, worked out from its manifest."""

from typing import Final

import msgspec

from mlc_compile.artifact import Manifest, PlannedTensor, WeightPlan

# What a weight is for, by a part of its checkpoint name; the first that occurs decides.
_ROLES: Final = (
    ("embed_tokens", "embedding"),
    ("lm_head", "head"),
    ("norm", "norm"),
    ("self_attn", "attention"),
    ("mlp", "mlp"),
)


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes at full context."""

    weights: int  # mapped from the file, so shared and evictable
    kv: int
    activations: int

    @property
    def total(self) -> int:
        """The sum of all three."""
        return self.weights + self.kv + self.activations


def memory_of(manifest: Manifest) -> Memory:
    """The three parts of what a run holds, the process itself aside."""
    return Memory(
        weights=manifest.plan.nbytes,
        kv=manifest.kv.nbytes(manifest.limits.context),
        activations=manifest.activation_bytes,
    )


def bytes_by_role(plan: WeightPlan) -> dict[str, int]:
    """Packed bytes per role, largest first."""
    totals: dict[str, int] = {}
    for tensor in plan.tensors:
        role = role_of(tensor)
        totals[role] = totals.get(role, 0) + sum(part.nbytes for part in tensor.parts)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def role_of(tensor: PlannedTensor) -> str:
    """One of embedding, head, norm, attention, mlp; "other" for a name that says nothing."""
    return next((role for part, role in _ROLES if part in tensor.sources[0]), "other")


def bytes_per_token(manifest: Manifest, depth: int) -> int:
    """Bytes that decoding one token reads, with `depth` tokens in the cache.

    Every weight once and the cache once. An embedding apart from the head is not read: the
    lookup takes one row of it; a tied one is read in full, as the head.
    """
    roles = bytes_by_role(manifest.plan)
    skipped = roles.get("embedding", 0) if "head" in roles else 0
    return sum(roles.values()) - skipped + manifest.kv.nbytes(depth)
