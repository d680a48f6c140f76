"""Kernels as objects: each asked for once, by all that its bytes depend on."""

import pytest
import tvm

from mlc_compile.emit.cpu import code_generation, tvm_target
from mlc_compile.emit.keeper import kept_by
from mlc_compile.emit.kernels import write_objects
from mlc_compile.target import find_target


class Remembering:
    """A keeper in memory, which may know some objects already."""

    def __init__(self, objects=()):
        self.objects, self.made = dict(objects), []

    def take(self, kernel, make):
        if kernel not in self.objects:
            self.made.append(kernel.name)
            self.objects[kernel] = make()
        return self.objects[kernel]


@pytest.fixture(scope="module")
def lowered(nano_after):
    """For a CPU that any other x86-64 row includes."""
    return nano_after("runtime", "cpu-x86-64-v2", "q4f16_1")


def emitted(mod, target, directory, keeper):
    directory.mkdir()
    with kept_by(keeper), code_generation():
        _executable, files = write_objects(mod, tvm_target(find_target(target)), directory)
    return [(path.name, path.read_bytes()) for path in sorted(directory.iterdir())], files


@pytest.fixture(scope="module")
def once(lowered, tmp_path_factory):
    """A keeper, and what `emitted` gives the first time."""
    keeper = Remembering()
    place = tmp_path_factory.mktemp("objects") / "a"
    return keeper, emitted(lowered, "cpu-x86-64-v2", place, keeper)


def test_every_kernel_has_an_object_and_a_second_time_none_is_made(lowered, once, tmp_path):
    keeper, (first, files) = once
    kernels = [str(v.name_hint) for v, f in lowered.functions.items() if is_kernel(f)]
    assert keeper.made == sorted(kernels)
    assert [name for name, _ in first] == [f"{name}.o" for name in keeper.made]
    assert [path.rpartition("/")[2] for path in files] == [name for name, _ in first]
    second, _ = emitted(lowered, "cpu-x86-64-v2", tmp_path / "b", keeper)
    assert len(keeper.made) == len(kernels)
    assert first == second


def is_kernel(function):
    return isinstance(function, tvm.tirx.PrimFunc)


def test_another_target_or_function_is_another_kernel(lowered, once, tmp_path):
    known, _ = once
    keeper, count = Remembering(known.objects), len(known.made)
    emitted(lowered, "cpu-x86-64-v3", tmp_path / "b", keeper)
    assert len(keeper.made) == count
    variable, function = next((v, f) for v, f in lowered.functions.items() if is_kernel(f))
    changed = tvm.IRModule(dict(lowered.functions), attrs=lowered.attrs)
    changed.update_func(variable, function.with_attr("mlc.other", 1))
    emitted(changed, "cpu-x86-64-v3", tmp_path / "c", keeper)
    assert keeper.made[count:] == [str(variable.name_hint)]
