"""What a device must have for several kernels is the most that any of them takes."""

import msgspec

from mlc_compile.artifact import DeviceNeeds
from mlc_compile.emit.vulkan.shaders import ShaderFacts, needs

WIDE = ShaderFacts(
    kernel="wide",
    local_size=(64, 1, 1),
    shared_bytes=1024,
    buffers=3,
    scalars=0,
    uniform_block=False,
    capabilities=("Float16", "Shader"),
    code_bytes=100,
)
TALL = msgspec.structs.replace(
    WIDE, kernel="tall", local_size=(8, 16, 1), buffers=9, capabilities=("Int8", "Shader")
)


def test_each_need_is_the_largest_of_its_own():
    assert needs((WIDE, TALL), "TVM 1") == DeviceNeeds(
        layout="TVM 1",
        capabilities=("Float16", "Int8", "Shader"),
        threads=128,  # of TALL: no kernel asks for 64 by 16
        local_size=(64, 16, 1),
        shared_bytes=1024,
        buffers=9,
    )


def test_needs_do_not_depend_on_the_order_of_kernels():
    assert needs((WIDE, TALL), "") == needs((TALL, WIDE), "")
