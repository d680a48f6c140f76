"""Words that errors and results share."""

from mlc_compile.errors import count


def test_one_thing_is_singular() -> None:
    assert [count(n, "core") for n in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
