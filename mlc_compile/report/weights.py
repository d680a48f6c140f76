"""How far an artifact's weights are from the checkpoint's: what convert noted, where it is."""

from contextlib import suppress
from pathlib import Path
from typing import Final

from mlc_compile.artifact import Manifest, WeightsManifest, read_manifest
from mlc_compile.errors import MlcError
from mlc_compile.quant.error import QUANTIZATION, Errors, TensorError
from mlc_compile.runtime.defaults import read_fields

WEIGHTS: Final = "weights"  # the directory beside an artifact, as `build` lays them out


def errors_of(artifact: Path, manifest: Manifest) -> tuple[TensorError, ...]:
    """The errors of the weights that were packed; none if those are not beside it, and sound."""
    weights = artifact.resolve().parent / WEIGHTS
    with suppress(MlcError):
        digest = read_manifest(weights, WeightsManifest).digest
        if digest == manifest.weights_digest and (weights / QUANTIZATION).is_file():
            return read_fields(weights, QUANTIZATION, Errors).tensors
    return ()
