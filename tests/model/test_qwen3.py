"""Qwen3 as a module: what its functions take and give, and the weights that it asks for."""

import pytest
import tvm
from tvm import relax, tirx

from mlc_compile.checkpoint import read_config
from mlc_compile.model import load_config
from mlc_compile.model.qwen3 import export
from mlc_compile.model.weights import weight_specs

TIES = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


@pytest.fixture(scope="module")
def config(nano_checkpoint):
    return load_config(read_config(nano_checkpoint), "config.json")


@pytest.fixture(scope="module")
def exported(config):
    """`exported(tied)`: the module and the weights' names."""
    return {tied: export(config, tied=tied) for tied in (True, False)}.__getitem__


def dims(ty):
    """A tensor's shape, its dtype after it, with the names of symbolic sizes."""
    shape = [d.name if isinstance(d, tirx.Var) else int(d) for d in ty.shape.values]
    return (*shape, ty.dtype)


@TIES
def test_its_weights_are_the_checkpoint_s(exported, config, tied):
    mod, names = exported(tied)
    specs = weight_specs(config, tied)
    assert set(names) == {s.name for s in specs}
    assert len(names) == len(specs)
    shapes = {s.name: (*s.shape, "float32") for s in specs}
    for name in ("embed", "prefill", "decode", "score"):
        fields = mod[name].params[-1].ty.fields
        assert {n: dims(f) for n, f in zip(names, fields, strict=True)} == shapes


@TIES
@pytest.mark.parametrize(
    ("name", "takes", "gives"),
    [("prefill", "n", 1), ("decode", 1, 1), ("score", "n", "n")],
)
def test_a_step_takes_embeddings_and_the_cache_and_gives_logits_and_the_cache(
    exported, config, tied, name, takes, gives
):
    func = exported(tied)[0][name]
    embeds, kv, _ = func.params
    assert dims(embeds.ty) == (1, takes, config.hidden_size, "float32")
    assert isinstance(kv.ty, relax.ObjectType)
    logits, state = func.ret_ty.fields
    assert dims(logits) == (1, gives, config.vocab_size, "float32")
    assert isinstance(state, relax.ObjectType)


def test_embed_takes_ids_and_gives_their_rows(exported, config):
    func = exported(True)[0]["embed"]
    assert dims(func.params[0].ty) == ("n", "int32")
    assert dims(func.ret_ty) == ("n", config.hidden_size, "float32")


@TIES
def test_nothing_else_is_exported(exported, tied):
    mod, _ = exported(tied)
    functions = {gv.name_hint for gv, f in mod.functions.items() if isinstance(f, relax.Function)}
    assert functions == {"embed", "prefill", "decode", "score"}


def test_two_exports_are_equal(exported, config):
    again, names = export(config, tied=True)
    assert names == exported(True)[1]
    tvm.ir.assert_structural_equal(again, exported(True)[0])
