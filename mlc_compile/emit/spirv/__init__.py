"""Vulkan compute shaders from lowered TIR, in Python alone.

Rooms, in the order of a kernel's way: `kernel` joins them; `usage` reads ahead; `interface`
declares what it is called with; `statements`, `expressions` (with `arithmetic`, `casts`,
`branches`, `calls`, `functions`, `subgroups`) and `memory` write instructions through `body`;
`declarations` and `module` are the layout of the binary; `opcodes` and `enumerants` its
numbers. `dtypes` says how values are held, `refusal` how a kernel is turned down.
"""

from .kernel import emit_kernel
from .shader import Shader

__all__ = ["Shader", "emit_kernel"]
