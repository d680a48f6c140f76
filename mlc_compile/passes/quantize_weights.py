"""Put weights into the form a quantization scheme stores them in.

    linear(x, w[n, k])      ->   quantized_matmul(x, w.q_weight, w.q_scale)
    take(w[n, k], ids)      ->   quantized_take(ids, w.q_weight, w.q_scale)
    w[n] as anything else   ->   astype(w stored as the scheme stores norms)

Dequantization is thereby part of its only reader. A matrix that the scheme cannot hold is
kept unquantized and an event says why. Runs after the fusions that move rows about.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import PyExprMutator, mutator

from mlc_compile import ops
from mlc_compile.passes import events
from mlc_compile.passes.rewrite import Bindings, bindings_of, mutate, rewrite_functions
from mlc_compile.quant import SCHEMES, find_scheme, scheme_for
from mlc_compile.quant.scheme import Scheme


@module_pass(opt_level=0, name="QuantizeWeights")
@dataclass(frozen=True)
class QuantizeWeights:
    """`scheme` is a key of quant.SCHEMES.

    Raises ConfigError for any other when it is made, not when it runs: of an error in a
    running pass TVM keeps the text only.
    """

    scheme: str

    def __post_init__(self) -> None:
        find_scheme(self.scheme)

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        scheme = SCHEMES[self.scheme]
        kept: list[events.Event] = []

        def rewrite(mod: IRModule, func: relax.Function) -> relax.Function:
            bindings = bindings_of(func)
            kept.extend(_kept(bindings.values(), scheme))
            return mutate(_Quantizer(mod, bindings, scheme), func)

        return events.record(rewrite_functions(mod, rewrite), kept)


def _kept(values: Iterable[relax.Expr], scheme: Scheme) -> Iterable[events.Event]:
    for value in values:
        if ops.is_call(value, "mlc.weight") and len(value.attrs["shape"]) == 2:
            w = ops.Weight.of(value)
            if w.part != "weight":
                continue  # a part of a matrix that is quantized already
            _, reason = scheme_for(scheme, *w.shape)
            if reason is not None:
                for source in w.sources:
                    yield events.Event("QuantizeWeights", source, "kept", reason)


@mutator
class _Quantizer(PyExprMutator):
    def __init__(self, mod: IRModule, bindings: Bindings, scheme: Scheme) -> None:
        super().__init__(mod)
        self.bindings = bindings
        self.scheme = scheme

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if ops.is_call(call, "mlc.linear") and (w := self._matrix(call.args[1])):
            x = self.visit_expr(call.args[0])
            return ops.quantized_matmul(x, *self._stored(w))
        if (
            ops.is_call(call, "relax.take")
            and _takes_rows(call)
            and (w := self._matrix(call.args[0]))
        ):
            ids = self.visit_expr(call.args[1])
            return ops.quantized_take(ids, *self._stored(w), w.shape[1])
        if ops.is_call(call, "mlc.weight") and len(call.attrs["shape"]) == 1:
            w = ops.Weight.of(call)
            if w.dtype != self.scheme.norm_dtype:
                stored = self.builder_.emit(ops.weight(replace(w, dtype=self.scheme.norm_dtype)))
                return relax.op.astype(stored, w.dtype)
        return super().visit_call_(call)

    def _matrix(self, var: relax.Expr) -> ops.Weight | None:
        bound = self.bindings.get(var)
        return ops.Weight.of(bound) if ops.is_call(bound, "mlc.weight") else None

    def _stored(self, w: ops.Weight) -> tuple[list[relax.Expr], ops.Matrix]:
        """The parts of a matrix, and what they stand for."""
        scheme, _ = scheme_for(self.scheme, *w.shape)
        parts = [
            self.builder_.emit(ops.weight(replace(w, part=suffix, shape=shape, dtype=dtype)))
            for suffix, (shape, dtype) in scheme.parts(*w.shape).items()
        ]
        return parts, ops.Matrix(w.shape[0], scheme.name)


def _takes_rows(call: relax.Call) -> bool:
    return call.attrs.axis is not None and int(call.attrs.axis) == 0
