"""For many rows, multiply in bfloat16 where the CPU has tiles for it, not in int8 or float32.

    int8_matmul(quantize_act(x; source), parts)   ->   bf16_matmul(round_act(x; source), parts)
    q, cache = flat_append(qkv ..);  flat_attend(q, cache ..)
        ->   q, cache = tile_append(qkv ..);  tile_attend(q, cache ..)

Tiles of bfloat16 lose less than int8 and need nothing after a group of 32 k, where tiles of
int8 would scale their sums. One row reads weights all the time, so it stays as it is: INT4
weights are multiplied by int8 as fast as they are read. After all other passes have worked on
int8, of which these are the same calls.
"""

from collections import Counter
from typing import ClassVar, Final

from tvm import IRModule, relax
from tvm.ir.transform import PassContext, module_pass
from tvm.relax.expr_functor import mutator

from mlc_compile import ops
from mlc_compile.layout import GROUP
from mlc_compile.passes import events
from mlc_compile.passes.fuse_quantize_gemv import quantization_of
from mlc_compile.passes.rewrite import Fuser, fuse_functions

MATMUL: Final = "mlc.int8_matmul"
APPEND: Final = "mlc.flat_append"
ATTEND: Final = "mlc.flat_attend"


@module_pass(opt_level=0, name="MultiplyBF16Tiles")
class MultiplyBF16Tiles:
    """Every product and attention of rows that may be several; for targets with such tiles."""

    def transform_module(self, mod: IRModule, _ctx: PassContext) -> IRModule:
        return fuse_functions(mod, _Fuser)


@mutator
class _Fuser(Fuser):
    step: ClassVar[str] = "MultiplyBF16Tiles"

    def __init__(self, mod: IRModule, func: relax.Function, noted: list[events.Event]) -> None:
        super().__init__(mod, func, noted)
        self.rounded: dict[relax.Call, relax.Var] = {}
        self.appends = self._appends()

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if call in self.appends.values():
            return ops.tile_append([self.visit_expr(a) for a in call.args], ops.Attention.of(call))
        if ops.is_call(call, ATTEND):
            return self._attended(call)
        if not ops.is_call(call, MATMUL):
            return super().visit_call_(call)
        if ops.is_one_row(call):
            return self._stays(call, "it has one row")
        quantize = quantization_of(call, self.bindings)
        if quantize is None:
            return self._stays(call, "its activations are not the results of one quantization")
        self.done(MATMUL)
        rest = [self.visit_expr(a) for a in call.args[3:]]
        w, k = ops.Matrix.of(call), ops.Source.of(quantize).k
        residual = bool(call.attrs["residual"])
        return ops.bf16_matmul(self._rounded(quantize), rest, w, k, residual=residual)

    def _attended(self, call: relax.Call) -> relax.Expr:
        if not _suits(call):
            return self._stays(call, f"its heads or pages are not of {GROUP}, as tiles take them")
        if call not in self.appends:
            return self._stays(call, "its queries are not one append's, or have other readers")
        self.done(ATTEND)
        return ops.tile_attend([self.visit_expr(a) for a in call.args], ops.Attention.of(call))

    def _appends(self) -> dict[relax.Call, relax.Call]:
        """Attention -> the append that makes its queries, where nothing else reads them."""
        taken = {v: e.tuple_value for v, e in self.bindings.items() if _is_first(e)}
        readers: Counter[relax.Var] = Counter()
        for queries, appended in taken.items():
            readers[appended] += self.uses[queries]
        found = {}
        for call in filter(_suits, self.bindings.values()):
            appended = taken.get(call.args[0])
            append = self.bindings.get(appended)
            if ops.is_call(append, APPEND) and readers[appended] == 1:
                found[call] = append
        return found

    def _rounded(self, quantize: relax.Call) -> relax.Var:
        """What `quantize` reads, rounded instead: once for all its readers."""
        if quantize not in self.rounded:
            inputs = [self.visit_expr(a) for a in quantize.args]
            call = ops.round_act(inputs, ops.Source.of(quantize))
            self.rounded[quantize] = self.builder_.emit(call)
        return self.rounded[quantize]

    def _stays(self, call: relax.Call, reason: str) -> relax.Expr:
        self.refused(str(call.op.name), reason)
        return super().visit_call_(call)


def _suits(call: relax.Expr) -> bool:
    """Whether `call` is an attention whose heads are whole groups, and a page is one."""
    if not ops.is_call(call, ATTEND):
        return False
    page = int(ops.shape_of(call.args[1])[-1])
    return ops.Attention.of(call).d % GROUP == 0 and page == GROUP


def _is_first(expr: relax.Expr) -> bool:
    return isinstance(expr, relax.TupleGetItem) and expr.index == 0
