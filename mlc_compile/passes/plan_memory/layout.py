"""Storages of a function and the place of each intermediate in them: ours, or TVM's if smaller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tvm import IRModule, relax, tirx

from mlc_compile import ops
from mlc_compile.passes.plan_memory.liveness import ALLOC, Intermediate, Liveness, liveness_of
from mlc_compile.passes.plan_memory.packing import extent, place, slot_sizes, slots

PLACED: Final = "relax.memory.alloc_tensor"
STORAGE: Final = "relax.memory.alloc_storage"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an allocation begins: `offset` bytes inside the storage of that number."""

    storage: int
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Bytes of each storage, and the place of each planned allocation."""

    storages: tuple[int, ...]
    places: Mapping[relax.Var, Place]

    def position(self, var: relax.Var) -> int:
        """Where it begins with the storages laid end to end."""
        where = self.places[var]
        return sum(self.storages[: where.storage]) + where.offset


def best_layout(
    mod: IRModule, func: relax.Function, static: relax.Function, *, arena: bool, in_place: bool
) -> tuple[Liveness, Layout]:
    """What is alive in `func`, and its layout; `static` is `func` as TVM's planner leaves it.

    TVM's can only be smaller by what we round up: a few tensors of a few bytes.
    """
    alive = liveness_of(mod, func, in_place=in_place)
    layout = arrange(alive.intermediates, arena=arena)
    if sum(layout.storages) <= storage_bytes(static):
        return alive, layout
    apart = liveness_of(mod, func, in_place=False)
    theirs = _as_static(apart.intermediates, func, static)
    return (alive, layout) if theirs is None else (apart, theirs)


def arrange(intermediates: Sequence[Intermediate], *, arena: bool) -> Layout:
    """An arena for those that may begin anywhere, shared slots for the others."""
    inside = [one for one in intermediates if arena and one.movable]
    whole = [one for one in intermediates if not (arena and one.movable)]
    offsets = place([one.lifetime for one in inside])
    shared = slots([one.lifetime for one in whole])
    arenas = [extent([one.lifetime for one in inside], offsets)] if inside else []
    places = {
        **{v: Place(0, at) for one, at in zip(inside, offsets, strict=True) for v in one.vars},
        **{
            v: Place(len(arenas) + slot, 0)
            for one, slot in zip(whole, shared, strict=True)
            for v in one.vars
        },
    }
    return Layout((*arenas, *slot_sizes([one.lifetime for one in whole], shared)), places)


def storage_bytes(func: relax.Function) -> int:
    """Bytes of the storages that a planned function allocates, those of symbolic size aside."""
    return sum(_storages(func).values())


def _storages(func: relax.Function) -> dict[relax.Var, int]:
    sizes = {v: call.args[0].values[0] for v, call in _bindings(func) if ops.is_call(call, STORAGE)}
    return {var: int(size) for var, size in sizes.items() if isinstance(size, tirx.IntImm)}


def _as_static(
    intermediates: Sequence[Intermediate], func: relax.Function, static: relax.Function
) -> Layout | None:
    """The layout of `static`, whose allocations come in the order of those of `func`.

    None where it leaves out one that we place.
    """
    ours = [var for var, value in _bindings(func) if ops.is_call(value, ALLOC)]
    theirs = [v for _, v in _bindings(static) if ops.is_call(v, ALLOC) or ops.is_call(v, PLACED)]
    sizes = _storages(static)
    number = {var: i for i, var in enumerate(sizes)}
    planned = {var for one in intermediates for var in one.vars}
    places = {
        var: Place(number[call.args[0]], int(call.args[1].value))
        for var, call in zip(ours, theirs, strict=True)
        if var in planned and call.args[0] in number
    }
    return Layout(tuple(sizes.values()), places) if set(places) == planned else None


def _bindings(func: relax.Function) -> list[tuple[relax.Var, relax.Expr]]:
    return [(b.var, b.value) for block in func.body.blocks for b in block.bindings]
