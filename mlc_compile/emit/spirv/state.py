"""What is known of a kernel while it is walked: handed whole to every rule."""

from collections.abc import Callable
from dataclasses import dataclass, field

import tvm
from tvm.runtime import Object as Node

from mlc_compile.target import Device

from .body import Body
from .dtypes import Type, Value, parse
from .enumerants import Capability, StorageClass
from .module import Module
from .refusal import ROW_FIELDS, beyond_row, refusal
from .usage import Usage
from .walk import key_of


@dataclass(frozen=True, slots=True)
class Memory:
    """A SPIR-V variable that TIR buffers show: elements of `width` lanes of `type`."""

    variable: int
    storage: StorageClass
    type: Type  # of a lane
    width: int
    block: bool  # the array is the member of a struct
    volatile: bool = False

    @property
    def narrow(self) -> bool:
        """Whether lanes are stored in another type than they are held in."""
        return self.block and (self.type.narrow or self.type.kind == "bool")


@dataclass(slots=True)
class Kernel:
    """One kernel; grows while its statements are walked."""

    name: str
    device: Device
    usage: Usage
    module: Module
    body: Body
    evaluate: Callable[["Kernel", Node], Value]
    variables: dict[int, Value] = field(default_factory=dict)  # by key_of
    buffers: dict[int, Memory] = field(default_factory=dict)  # by the key of their root
    builtins: dict[int, int] = field(default_factory=dict)
    guarded: dict[int, bool] = field(default_factory=dict)  # expressions, see `branches`
    local_size: list[int] = field(default_factory=lambda: [1, 1, 1])
    shared_bytes: int = 0

    def value(self, node: Node) -> Value:
        """Compute a TIR expression."""
        return self.evaluate(self, node)

    def type_of(self, node: Node) -> Type:
        """The type of an expression or a variable; refused if SPIR-V has nothing like it."""
        ty = node.ty
        if not isinstance(ty, tvm.ir.PrimType):
            raise self.refuse(node, f"it has no value but {ty}")
        return self.element_type(str(ty.dtype), node)

    def element_type(self, dtype: str, node: Node) -> Type:
        """The type that TVM calls `dtype`."""
        found = parse(dtype)
        if found is None:
            raise self.refuse(node, f"there is no {dtype} on these devices")
        if found.half and not self.device.f16:
            raise beyond_row(self.name, node, "float16", "f16", self.device.f16)
        return found

    def bind(self, variable: Node, value: Value) -> None:
        """Give a variable its value; one that had another before makes all known stale."""
        key = key_of(variable)
        if key in self.variables:
            self.body.forget()
        self.variables[key] = value

    def need(self, capability: Capability, node: Node) -> None:
        """Take what a device must be asked for; refused if the row does not promise it."""
        need, row_field = ROW_FIELDS[capability]
        has = getattr(self.device, row_field)
        if not has:
            raise beyond_row(self.name, node, need, row_field, has)
        self.module.capabilities.add(capability)

    def refuse(self, node: Node, why: str) -> Exception:
        """The error for a node that no rule can do."""
        return refusal(self.name, node, why)
