"""What the attributes of `mlc.*` operators say, as frozen dataclasses."""

from dataclasses import asdict, dataclass
from typing import Final

from tvm import relax

from mlc_compile.layout import GROUP, ZERO_POINT

COMPUTE_DTYPE: Final = "float32"
SOURCES: Final = {"plain": 1, "rms_norm": 2, "swiglu": 1}  # name -> number of inputs
RAW: Final = "raw"  # the layout of a weight as the checkpoint has it


@dataclass(frozen=True, slots=True)
class Attention:
    """Attributes of `mlc.attention`: heads and head size, the layer, and RoPE's constants."""

    layer: int
    h_q: int
    h_kv: int
    d: int
    eps: float  # of the per-head RMSNorm of q and k
    rope_scale: float  # multiplies cos and sin; 1 but for YaRN
    inv_freq: tuple[float, ...]  # radians a position, d / 2 of them

    def attrs(self) -> dict[str, object]:
        """As operator attributes."""
        return {**asdict(self), "inv_freq": list(self.inv_freq)}

    @classmethod
    def of(cls, call: relax.Call) -> "Attention":
        """The attributes of a call of `mlc.attention` or what it became."""
        a = call.attrs
        ints = {f: int(a[f]) for f in ("layer", "h_q", "h_kv", "d")}
        inv_freq = tuple(float(f) for f in a["inv_freq"])
        return cls(
            **ints, eps=float(a["eps"]), rope_scale=float(a["rope_scale"]), inv_freq=inv_freq
        )


@dataclass(frozen=True, slots=True)
class Weight:
    """Attributes of `mlc.weight`: one part of the rows of `sources`, joined in order."""

    sources: tuple[str, ...]  # checkpoint names
    part: str  # suffix the scheme gives this array; "weight" when it is not quantized
    layout: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, call: relax.Call) -> "Weight":
        """The attributes of a `mlc.weight` call."""
        a = call.attrs
        return cls(
            sources=tuple(str(s) for s in a["sources"]),
            part=str(a["part"]),
            layout=str(a["layout"]),
            shape=tuple(int(s) for s in a["shape"]),
            dtype=str(a["dtype"]),
        )


@dataclass(frozen=True, slots=True)
class Matrix:
    """Attributes that say what the parts of w[n, k] stand for: n, and a key of quant.SCHEMES."""

    n: int
    scheme: str

    @classmethod
    def of(cls, call: relax.Call) -> "Matrix":
        """The matrix of a matmul or lookup with quantized weights."""
        return cls(n=int(call.attrs["n"]), scheme=str(call.attrs["scheme"]))


@dataclass(frozen=True, slots=True)
class Source:
    """Attributes that say how activations are made: `kind` from SOURCES, width k, eps of a norm."""

    kind: str
    k: int
    eps: float = 0.0

    def attrs(self) -> dict[str, object]:
        """As operator attributes."""
        return {"source": self.kind, "k": self.k, "eps": self.eps}

    @classmethod
    def of(cls, call: relax.Call) -> "Source":
        """The source of a call that has one."""
        a = call.attrs
        return cls(kind=str(a["source"]), k=int(a["k"]), eps=float(a["eps"]))


@dataclass(frozen=True, slots=True)
class Grouping:
    """How activations become int8: `group` consecutive k share a scale.

    An offset is -zero times the sum of a group's codes: it takes off what a sum of products has
    too much, `zero` being the byte that stands for 0 in the weights.
    """

    group: int = GROUP
    zero: int = ZERO_POINT

    @property
    def weight_groups(self) -> int:
        """Groups of the weights that share a scale."""
        return self.group // GROUP

    @classmethod
    def of(cls, call: relax.Call) -> "Grouping":
        """The grouping of a `mlc.quantize_act`."""
        return cls(group=int(call.attrs["group"]), zero=int(call.attrs["zero"]))


NARROW: Final = Grouping()  # as INT4 weights are grouped, and their codes


def rounded_words(k: int) -> int:
    """int32 of a row that `mlc.round_act` gives: k / 2 pairs, padded to an odd number of lines.

    A tile reads one cache line of 16 rows at once: so they lie in different sets of a cache.
    """
    return GROUP // 2 * (k // GROUP | 1)
