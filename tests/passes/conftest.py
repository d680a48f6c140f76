"""Small Relax functions, built by hand, for the passes to work on."""

from collections.abc import Callable, Mapping, Sequence

import pytest


@pytest.fixture
def graph() -> Callable[..., object]:
    """`graph({"x": (1, "n", 8)}, lambda emit, x: ...)`: a module with one function of a block.

    A string in a shape is a symbolic size, the same one wherever it occurs; a shape of None
    is an object. `also=` puts the function beside those of another module.
    """
    from tvm import relax, tirx

    def make(
        inputs: Mapping[str, Sequence[int | str] | None],
        body: Callable[..., object],
        *,
        name: str = "main",
        dtypes: Mapping[str, str] | None = None,
        also: object = None,
    ) -> object:
        sizes: dict[str, object] = {}

        def var(key: str, shape: Sequence[int | str] | None) -> object:
            if shape is None:
                return relax.Var(key, relax.ObjectType())
            dims = [
                sizes.setdefault(s, tirx.Var(s, "int64")) if isinstance(s, str) else s
                for s in shape
            ]
            return relax.Var(key, relax.TensorType(dims, (dtypes or {}).get(key, "float32")))

        builder = relax.BlockBuilder(also)
        params = [var(key, shape) for key, shape in inputs.items()]
        with builder.function(name, params):
            with builder.dataflow():
                out = builder.emit_output(body(builder.emit, *params))
            builder.emit_func_output(out)
        return builder.get()

    return make


@pytest.fixture
def weight() -> Callable[..., object]:
    """`weight("a.weight", 8, 4)`: a raw float32 `mlc.weight`; several names are joined rows."""
    from mlc_compile import ops

    def make(
        names: str,
        *shape: int,
        part: str = "weight",
        layout: str = ops.RAW,
        dtype: str = "float32",
    ) -> object:
        return ops.weight(ops.Weight(tuple(names.split()), part, layout, shape, dtype))

    return make


@pytest.fixture
def same() -> Callable[[object, object], None]:
    """Assert that two modules are equal but for the names of variables and events."""
    import tvm
    from tvm import relax

    from mlc_compile.passes import events

    def check(got: object, expected: object) -> None:
        # A rewritten binding may leave `y = x` behind, which later passes never see.
        plain = (m.without_attr(events.ATTRIBUTE) for m in (got, expected))
        one, other = (relax.transform.CanonicalizeBindings()(m) for m in plain)
        tvm.ir.assert_structural_equal(one, other)

    return check


@pytest.fixture
def told() -> Callable[[object, str], list[tuple[str, str, str]]]:
    """`told(module, "FusePass")`: subject, outcome and reason of what that pass noted."""
    from mlc_compile.passes import events

    def read(module: object, source: str) -> list[tuple[str, str, str]]:
        noted = [e for e in events.read(module) if e.source == source]
        return [(e.subject, e.outcome, e.reason) for e in noted]

    return read


@pytest.fixture
def refused() -> Callable[[object, object], list[str]]:
    """`refused(step, module)`: the reasons it gives for leaving a module as it is."""
    import tvm

    from mlc_compile.passes import events

    def check(step: Callable[[object], object], module: object) -> list[str]:
        got = step(module)
        tvm.ir.assert_structural_equal(got.without_attr(events.ATTRIBUTE), module)
        noted = events.read(got)
        assert {e.outcome for e in noted} == {"refused"}
        return [e.reason for e in noted]

    return check


@pytest.fixture
def stays() -> Callable[[object, object], None]:
    """Assert that a pass leaves a module exactly as it is, its events included."""
    import tvm

    def check(step: Callable[[object], object], module: object) -> None:
        tvm.ir.assert_structural_equal(step(module), module)

    return check
