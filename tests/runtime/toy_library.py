"""Compile a library with the functions of a real one: logits = E[id] @ H, the cache untouched.

`python toy_library.py OUT VOCAB HIDDEN [choosing]`

`choosing` adds what a library for a device has: `argmax`, and a `sample` that gives back its
settings as one number, 1000 (temperature + 10 top_k + 100 top_p + uniform), in place of a token.
"""

import sys

import tvm
from tvm import relax


def tensor(dtype: str, *shape: object) -> relax.TensorType:
    return relax.TensorType(shape, dtype)


def compile_toy(path: str, vocab: int, hidden: int, choosing: bool) -> None:
    n = tvm.tirx.Var("n", "int64")
    pages = [tensor("float32", 1, 2, 1, 2, 16), tensor("float32", 1, 2, 1, 16, 2)]
    cache = relax.TupleType([*pages, tensor("int32", 2), tensor("int32", 1)])
    weights = relax.TupleType([tensor("float32", vocab, hidden), tensor("float32", hidden, vocab)])
    params, kv = relax.Var("params", weights), relax.Var("kv", cache)
    builder = relax.BlockBuilder()
    ids = relax.Var("ids", tensor("int32", n))
    with builder.function("embed", [ids, params]):
        builder.emit_func_output(
            builder.emit(relax.op.take(relax.TupleGetItem(params, 0), ids, axis=0, mode="clip"))
        )
    for name, rows in (("prefill", n), ("decode", 1), ("score", n)):
        params, kv = relax.Var("params", weights), relax.Var("kv", cache)
        x = relax.Var("embeds", tensor("float32", 1, rows, hidden))
        with builder.function(name, [x, kv, params]):
            logits = builder.emit(relax.op.matmul(x, relax.TupleGetItem(params, 1)))
            if name == "prefill":
                last = relax.op.strided_slice(logits, axes=[1], begin=[-1], end=[2**31 - 1])
                logits = builder.emit(last)
            builder.emit_func_output(builder.emit(relax.Tuple([logits, kv])))
    if choosing:
        add_choosers(builder, vocab)
    relax.build(builder.get(), target=tvm.target.Target({"kind": "llvm"})).export_library(path)


def add_choosers(builder: relax.BlockBuilder, vocab: int) -> None:
    logits = relax.Var("logits", tensor("float32", 1, 1, vocab))
    with builder.function("argmax", [logits]):
        flat = builder.emit(relax.op.reshape(logits, [1, vocab]))
        best = builder.emit(relax.op.argmax(flat, axis=1))
        builder.emit_func_output(builder.emit(relax.op.astype(best, "int32")))
    types = {"temperature": "float32", "top_k": "int32", "top_p": "float32", "uniform": "float32"}
    settings = [relax.Var(name, tensor(dtype, 1)) for name, dtype in types.items()]
    logits = relax.Var("logits", tensor("float32", 1, 1, vocab))
    with builder.function("sample", [logits, *settings]):
        total = relax.const([0.0], "float32")
        for setting, weight in zip(settings, (1e3, 1e4, 1e5, 1e3), strict=True):
            part = relax.op.multiply(
                relax.op.astype(setting, "float32"), relax.const(weight, "float32")
            )
            total = builder.emit(relax.op.add(total, part))
        builder.emit_func_output(builder.emit(relax.op.astype(total, "int32")))


if __name__ == "__main__":
    path, vocab, hidden, *rest = sys.argv[1:]
    compile_toy(path, int(vocab), int(hidden), choosing=rest == ["choosing"])
