"""What the device refuses is told with what helps."""

import pytest

from mlc_compile.runtime.vulkan.failure import refused


@pytest.mark.parametrize(
    ("result", "helps"),
    [
        ("VkErrorOutOfDeviceMemory", "smaller --context"),
        ("VkErrorDeviceLost", "ran too long"),
        ("VkErrorInitializationFailed", "update the GPU's driver"),
    ],
)
def test_the_hint_fits_what_was_refused(result: str, helps: str) -> None:
    failure = refused("run a batch of kernels", result)
    assert str(failure) == f"the GPU could not run a batch of kernels: {result}"
    assert helps in failure.hint
