"""Conversions: every pair of types, and bits between widths."""

import itertools

import numpy as np
import pytest
from tvm import tirx

from .writing import F16, F32, THREADS, U32, call, const, kernel, load, store

NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32")
DTYPES = ("bool", *NUMBERS)


def samples(source, target):
    """Values that the target has; negative ones where an integer comes from an integer."""
    rng = np.random.default_rng(0)
    kind = np.dtype(source).kind
    if kind == "b":
        return rng.integers(0, 2, THREADS).astype(source)
    if kind == "f":
        least = 0 if target[0] in "u" else -100
        most = 4e9 if (source, target) == ("float32", "uint32") else 100
        return rng.uniform(least, most, THREADS).astype(source)
    most = 2000 if target == "float16" else None  # beyond, rounding is the device's choice
    bounds = np.iinfo(source)
    high = min(bounds.max, most or bounds.max)
    low = max(bounds.min, -(most or -bounds.min))
    return rng.integers(low, high, THREADS, source, endpoint=True)


@pytest.mark.vulkan
def test_every_type_becomes_every_other(run):
    pairs = list(itertools.permutations(DTYPES, 2))
    xs = [samples(*pair) for pair in pairs]
    for number, (source, target) in enumerate(pairs):

        def body(n, target=target):
            return [store(n.y, tirx.Cast(target, load(n.x, n.thread)), n.thread)]

        y = np.zeros(THREADS, target)
        run(kernel(body, {"x": source, "y": target}), [xs[number], y])
        want = xs[number].astype(target)
        if target == F32 or (source, target) == (F32, F16):
            np.testing.assert_array_max_ulp(y, want, 1)  # the device rounds either way
        else:
            np.testing.assert_array_equal(y, want, err_msg=f"{source} -> {target}")


@pytest.mark.vulkan
@pytest.mark.parametrize(
    ("source", "lanes", "target", "to_lanes"),
    [
        ("uint32", 1, "float16", 2),
        ("uint32", 1, "uint8", 4),
        ("uint32", 2, "int16", 4),
        ("int8", 4, "uint32", 1),
        ("uint16", 1, "float16", 1),
        ("float16", 1, "int16", 1),
        ("float16", 4, "uint32", 2),
        ("float32", 2, "int32", 2),
        ("uint32", 1, "float32", 1),
        ("int8", 2, "uint8", 2),
        ("uint8", 2, "float16", 1),
        ("float16", 8, "uint32", 4),
        ("uint32", 4, "uint8", 16),
    ],
)
def test_bits_are_kept_between_widths(run, source, lanes, target, to_lanes):
    def name(dtype, n):
        return dtype if n == 1 else f"{dtype}x{n}"

    def body(n):
        x = load(n.x, n.thread * lanes, lanes)
        value = call("tirx.reinterpret", name(target, to_lanes), x)
        return [store(n.y, value, n.thread * to_lanes, to_lanes)]

    size = np.dtype(source).itemsize * lanes * THREADS
    raw = np.random.default_rng(0).integers(0, 256, size).astype("uint8")
    raw[1::2] &= 0x7B  # no float of any width is NaN or infinite
    x, y = raw.view(source), np.zeros_like(raw).view(target)
    run(kernel(body, {"x": source, "y": target}, size=size), [x, y])
    np.testing.assert_array_equal(y.view("uint8"), raw)


@pytest.mark.vulkan
def test_a_constants_bits_reach_the_device(run):
    bits = np.array([0x7F800000, 0xFF800000, 0x00000001, 0x80000000, 0x3FC90FDB], "uint32")

    def body(n):
        for i, value in enumerate(bits.view(F32)):
            constant = tirx.FloatImm(F32, float(value))
            yield store(n.y, call("tirx.reinterpret", U32, constant), const("int32", i))

    y = np.zeros(THREADS, U32)
    run(kernel(body, {"y": U32}), [y])
    np.testing.assert_array_equal(y[: len(bits)], bits)


@pytest.mark.vulkan
def test_64_bit_indices_are_narrowed(run):
    def body(n):
        wide = tirx.Cast("int64", n.thread)
        index = tirx.FloorMod(tirx.Add(wide, const("int64", 5)), tirx.Cast("int64", n.m))
        return [store(n.y, tirx.Cast("int32", index), n.thread)]

    y = np.zeros(THREADS, "int32")
    run(kernel(body, {"y": "int32"}, {"m": "int64"}), [y], (np.int64(7),))
    np.testing.assert_array_equal(y, (np.arange(THREADS) + 5) % 7)


@pytest.mark.vulkan
def test_shifts_of_64_bits_keep_the_sign(run):
    """TVM's lowering of a floored quotient shifts by 63."""

    def body(n):
        wide = tirx.Sub(tirx.Cast("int64", n.thread), const("int64", 9))
        return [store(n.y, tirx.Cast("int32", tirx.RShift(wide, const("int64", 63))), n.thread)]

    y = np.zeros(THREADS, "int32")
    run(kernel(body, {"y": "int32"}), [y])
    np.testing.assert_array_equal(y, np.where(np.arange(THREADS) < 9, -1, 0))
