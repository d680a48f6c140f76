"""Sizes and amounts have the unit that leaves few digits."""

import pytest

from mlc_compile.report.units import amount, size


@pytest.mark.parametrize(
    ("nbytes", "told"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")]
)
def test_sizes_have_units(nbytes, told):
    assert size(nbytes) == told


def test_amounts_have_prefixes():
    assert [amount(n) for n in (0, 12, 1500, 2.5e9)] == ["0", "12", "1.5 k", "2.5 G"]
