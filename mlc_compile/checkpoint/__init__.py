"""Model directories as people download them: config, tokenizer files and weights.

Knows Hugging Face's files and no model: which tensors there must be, the model says.
"""

from mlc_compile.checkpoint.checkpoint import Checkpoint, open_checkpoint
from mlc_compile.checkpoint.directory import find_model, read_config, tokenizer_files
from mlc_compile.checkpoint.tensor_cache import TensorCache

__all__ = [
    "Checkpoint",
    "TensorCache",
    "find_model",
    "open_checkpoint",
    "read_config",
    "tokenizer_files",
]
