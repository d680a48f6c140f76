"""Who keeps kernels: whoever said so around the build, and nobody otherwise."""

import pytest

from mlc_compile.emit.keeper import KernelSource, kept_by, take

KERNEL = KernelSource(name="n", function="f", target="t", settings="s")


class Fixed:
    def __init__(self, data):
        self.data = data

    def take(self, _kernel, _make):
        return self.data


def test_the_innermost_keeper_is_asked_and_only_in_its_block():
    assert take(KERNEL, lambda: b"made") == b"made"
    with kept_by(Fixed(b"outer")):
        with kept_by(Fixed(b"inner")):
            assert take(KERNEL, lambda: b"made") == b"inner"
        assert take(KERNEL, lambda: b"made") == b"outer"
    assert take(KERNEL, lambda: b"made") == b"made"


def test_a_failing_build_leaves_no_keeper_behind():
    with pytest.raises(ZeroDivisionError), kept_by(Fixed(b"kept")):
        raise ZeroDivisionError
    assert take(KERNEL, lambda: b"made") == b"made"
