"""Instructions of a function while its blocks are written, each pure one only once.

An instruction without side effects whose operands are the same ids has the same result. So it
is looked up first (value numbering), in the blocks that dominate the present one: a scope is
opened for every block that what follows it may not see. TVM hands over index arithmetic again
and again, and NoContraction keeps a device's compiler from finding some of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from . import declarations as d
from .dtypes import WIDEST, Type, Value
from .enumerants import Capability, Decoration
from .module import Module, append
from .opcodes import Glsl, Op

Key = tuple[int, ...]

# Instructions whose floats are whole numbers.
WHOLE: Final = {Op.ConvertSToF, Op.ConvertUToF}
WHOLE_GLSL: Final = {Glsl.Floor, Glsl.Ceil, Glsl.Trunc, Glsl.RoundEven}


@dataclass(slots=True)
class Body:
    """The function of a module, and what is known where the next instruction goes."""

    module: Module
    label: int = 0  # of the present block
    effects: int = 0  # how many loads, barriers and the like there were so far
    whole: set[int] = field(default_factory=set)  # ids of floats that are whole numbers
    constants: set[int] = field(default_factory=set)  # ids
    _held: dict[tuple[str, int, int], int] = field(default_factory=dict)
    _scopes: list[dict[Key, int]] = field(default_factory=lambda: [{}])
    _seen: list[dict[int, Value]] = field(default_factory=lambda: [{}])
    _parts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # ids of a vector's lanes

    def __post_init__(self) -> None:
        self.label = self.module.first

    # ---- pure instructions

    def op(
        self,
        op: Op,
        type_: Type,
        *operands: Value,
        before: Key = (),
        after: Key = (),
        exact: bool = False,
    ) -> Value:
        """`op` lane by lane: once for each chunk.

        `before` and `after` are operands that are the same for all. `exact`: NoContraction.
        """
        if op is not Op.FConvert:
            self.use(type_, *[o.type for o in operands])
        made = tuple(
            self.pure(op, self.held(type_, lanes), (*before, *ids, *after), exact)
            for lanes, *ids in zip(type_.chunks, *[o.ids for o in operands], strict=True)
        )
        if op in WHOLE or (op is Op.ExtInst and before[-1] in WHOLE_GLSL):
            self.whole.update(made)
        return Value(type_, made)

    def glsl(self, number: Glsl, type_: Type, *operands: Value) -> Value:
        """An extended instruction, lane by lane."""
        return self.op(Op.ExtInst, type_, *operands, before=(self.module.glsl, number))

    def constant(self, type_: Type, value: float) -> Value:
        """The same number in every lane."""
        self.use(type_)
        made = d.constant(self.module, type_, value)
        self.constants.update(made.ids)
        if type_.lanes > 1:
            (lane,) = d.constant(self.module, type_.scalar, value).ids
            chunks = zip(made.ids, type_.chunks, strict=True)
            self._parts |= {chunk: (lane,) * width for chunk, width in chunks}
        return made

    def pure(self, op: Op, type_id: int, operands: Key, exact: bool = False) -> int:
        """The id of an instruction's result, by its words; `op` is for values."""
        key = (op, type_id, exact, *operands)
        for scope in reversed(self._scopes):
            if key in scope:
                return scope[key]
        made = self.impure(op, type_id, *operands)
        if exact:
            self.module.decorate(made, Decoration.NoContraction)
        self._scopes[-1][key] = made
        return made

    # ---- vectors

    def lanes(self, value: Value) -> list[Value]:
        """The lanes of a vector, each a scalar."""
        return [self.lane(value, i) for i in range(value.type.lanes)]

    def lane(self, value: Value, number: int) -> Value:
        """One lane of a vector."""
        chunk, at = divmod(number, WIDEST)
        whole, width = value.ids[chunk], value.type.chunks[chunk]
        scalar = value.type.scalar
        return Value(scalar, (whole if width == 1 else self._extract(scalar, whole, at),))

    def join(self, lanes: Sequence[Value]) -> Value:
        """A vector of scalars of one type."""
        type_ = lanes[0].type.of(len(lanes))
        if len(lanes) == 1:
            return lanes[0]
        ids = [lane.ids[0] for lane in lanes]
        parts = [ids[at : at + WIDEST] for at in range(0, len(ids), WIDEST)]
        return Value(type_, tuple(self._construct(type_, part) for part in parts))

    def splat(self, value: Value, lanes: int) -> Value:
        """A scalar in every lane."""
        return self.join([value] * lanes)

    def _construct(self, type_: Type, ids: list[int]) -> int:
        if len(ids) == 1:
            return ids[0]
        self.use(type_)
        held = self.held(type_, len(ids))
        if self.constants.issuperset(ids):
            made = self.module.declare(Op.ConstantComposite, held, *ids)
            self.constants.add(made)
        else:
            made = self.pure(Op.CompositeConstruct, held, tuple(ids))
        self._parts[made] = tuple(ids)
        return made

    def _extract(self, scalar: Type, vector: int, at: int) -> int:
        if vector in self._parts:
            return self._parts[vector][at]
        self.use(scalar)
        return self.pure(Op.CompositeExtract, self.held(scalar), (vector, at))

    # ---- types

    def held(self, type_: Type, lanes: int | None = None) -> int:
        """The id of a type of values; of one chunk of `lanes`, if it has several."""
        key = type_.kind, type_.bits, type_.lanes if lanes is None else lanes
        found = self._held.get(key)
        if found is None:
            found = self._held[key] = d.held(self.module, type_, key[2])
        return found

    def use(self, *types: Type) -> None:
        """Values of these types are computed with, and not only loaded, stored or converted."""
        for type_ in types:
            if type_.bits == 16 and type_.half:
                self.module.capabilities.add(Capability.Float16)

    # ---- everything else

    def impure(self, op: Op, type_id: int, *operands: int) -> int:
        """An instruction with a result that is made anew each time."""
        made = self.module.fresh()
        append(self.module.code, op, type_id, made, *operands)
        return made

    def act(self, op: Op, *operands: int) -> None:
        """An instruction without a result."""
        append(self.module.code, op, *operands)

    def open_block(self, label: int) -> None:
        """Begin a block; the one before must have ended."""
        self.act(Op.Label, label)
        self.label = label

    # ---- what is known

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Blocks whose results mean nothing once they are left."""
        self._scopes.append({})
        self._seen.append({})
        try:
            yield
        finally:
            self._scopes.pop()
            self._seen.pop()

    def recall(self, node: int) -> Value | None:
        """The value of a TIR expression that was computed where it still holds."""
        for seen in reversed(self._seen):
            if node in seen:
                return seen[node]
        return None

    def remember(self, node: int, value: Value) -> None:
        """A TIR expression without loads has this value here."""
        self._seen[-1][node] = value

    def forget(self) -> None:
        """A variable is bound anew: TIR expressions may have other values now."""
        for seen in self._seen:
            seen.clear()
