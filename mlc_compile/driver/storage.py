"""How each tensor of a model is stored under a scheme, and how its values come back."""

from collections.abc import Iterator
from dataclasses import dataclass

from mlc_compile.checkpoint import TensorCache
from mlc_compile.model.weights import WeightSpec
from mlc_compile.quant import UNQUANTIZED, part_name, scheme_for
from mlc_compile.quant.scheme import Floats, Scheme, Shape


@dataclass(frozen=True, slots=True)
class Storage:
    """The scheme of one tensor. `kept` says why a matrix stays unquantized."""

    spec: WeightSpec
    scheme: Scheme
    kept: str | None = None

    @property
    def is_vector(self) -> bool:
        """A norm: to its scheme a single row."""
        return len(self.spec.shape) == 1

    @property
    def rows(self) -> int:
        """Rows of the matrix."""
        return 1 if self.is_vector else self.spec.shape[0]

    @property
    def columns(self) -> int:
        """Columns of the matrix."""
        return self.spec.shape[-1]

    def parts(self) -> Iterator[tuple[str, Shape, str]]:
        """(suffix, shape, dtype) of what is written; a norm's part is a vector again."""
        for suffix, (shape, dtype) in self.scheme.parts(self.rows, self.columns).items():
            yield suffix, shape[1:] if self.is_vector else shape, dtype


def storage_of(spec: WeightSpec, scheme: Scheme) -> Storage:
    """Norms are never quantized; neither is a matrix that the scheme cannot hold."""
    if spec.role == "norm":
        return Storage(spec, UNQUANTIZED[scheme.norm_dtype])
    return Storage(spec, *scheme_for(scheme, *spec.shape))


@dataclass(frozen=True, slots=True)
class Dequantized:
    """A stored tensor as float32, decoded by rows when asked for: a `reference.Weight`."""

    cache: TensorCache
    storage: Storage

    @property
    def shape(self) -> Shape:
        """The checkpoint's shape."""
        return self.storage.spec.shape

    def __getitem__(self, rows: slice, /) -> Floats:
        start, stop, _step = rows.indices(self.shape[0])
        name = self.storage.spec.name
        parts = {
            suffix: self.cache.read_rows(part_name(name, suffix), start, stop)
            for suffix, _shape, _dtype in self.storage.parts()
        }
        return self.storage.scheme.decode(parts)
