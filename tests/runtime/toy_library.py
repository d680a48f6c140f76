"""Compile a library with the functions of a real one: logits = E[id] @ H, the cache untouched.

`python toy_library.py OUT VOCAB HIDDEN`
"""

import sys

import tvm
from tvm import relax


def tensor(dtype: str, *shape: object) -> relax.TensorType:
    return relax.TensorType(shape, dtype)


def compile_toy(path: str, vocab: int, hidden: int) -> None:
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
    relax.build(builder.get(), target=tvm.target.Target({"kind": "llvm"})).export_library(path)


if __name__ == "__main__":
    compile_toy(sys.argv[1], *map(int, sys.argv[2:]))
