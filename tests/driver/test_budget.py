"""`--memory-budget` takes the largest limits that fit, to the byte, or says why none do."""

import json
import shutil

import pytest

from mlc_compile.artifact import FlatKV, Limits, Manifest, read_manifest
from mlc_compile.cli.app import invoke
from mlc_compile.driver.budget import (
    ALLOCATOR_PAGE,
    MIB,
    RUNTIME,
    THREADS,
    activation_bytes,
)
from mlc_compile.driver.budget import _Footprint as Footprint
from mlc_compile.driver.compile import prepare
from mlc_compile.driver.job import Options
from mlc_compile.driver.subject import read_subject
from mlc_compile.errors import TargetError
from mlc_compile.target import find_target


@pytest.fixture(scope="module")
def subject(nano_checkpoint):
    return read_subject(nano_checkpoint)


@pytest.fixture(scope="module", autouse=True)
def lowered_once():
    """Most of the time goes into lowering equal modules and planning equal chunks: once each."""
    lower, plan, known, planned = Footprint.of, Footprint.activations, {}, {}

    def of(row, importer):
        _, asked = importer(row, Limits(context=1, prefill_chunk=1))
        name = row.name, asked.kv.dtype
        if name not in known:
            known[name] = lower(row, importer)
        return known[name]

    def activations(self, chunk):
        name = id(self), chunk  # `known` holds each, so it is nobody else's
        if name not in planned:
            planned[name] = plan(self, chunk)
        return planned[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Footprint, "of", of)
        patch.setattr(Footprint, "activations", activations)
        yield


@pytest.fixture(scope="module")
def needs(subject):
    """`needs(budget, context=.., prefill_chunk=..)`: the limits of the nano model."""

    def decide(budget, **asked):
        options = Options(memory_budget=budget, **asked)
        return prepare(subject, find_target("cpu"), "q4f16_1", options).limits

    return decide


def total(error):
    """The bytes that the smallest limits take, from the message."""
    return int(str(error.value).rpartition(", ")[2].split(" ")[0])


def smallest(needs, **asked):
    """The least budget that `asked` fits into: what the refusal of none says is missing."""
    with pytest.raises(TargetError) as error:
        needs(0, **asked)
    return total(error)


def test_a_byte_decides(needs):
    least = smallest(needs)
    assert needs(least) == Limits(context=32, prefill_chunk=16)
    with pytest.raises(
        TargetError, match=r", 1 bytes more than the .* of --memory-budget"
    ) as error:
        needs(least - 1)
    assert error.value.exit_code == 4
    assert "--kv-dtype float16" in error.value.hint


def test_the_arithmetic_is_told_and_adds_up(needs):
    with pytest.raises(TargetError, match="over budget: ") as error:
        needs(100 * MIB)
    text = str(error.value)
    *terms, rest = text.removeprefix("over budget: ").split(" + ")
    last, sum_ = rest.split(" = ")
    mib = [float(term.split(" MiB")[0].split(" ")[-1]) for term in [*terms, last]]
    assert [term.split(" ")[0] for term in [*terms, last]] == [
        "weights",
        "KV",
        "activations",
        "runtime",
    ]
    assert float(sum_.split(" MiB")[0]) == pytest.approx(sum(mib), abs=0.2)  # each is rounded
    assert mib[-1] == RUNTIME / MIB
    assert "100.0 MiB of --memory-budget" in text


def test_plenty_takes_all_that_the_model_can(needs):
    assert needs(1 << 40) == Limits(context=512, prefill_chunk=512)


def test_more_memory_never_gives_a_smaller_chunk(needs):
    least = smallest(needs)
    found = [needs(least + extra * MIB // 4) for extra in range(0, 12, 3)]
    chunks = [limits.prefill_chunk for limits in found]
    assert chunks == sorted(chunks)
    assert len(set(chunks)) > 1
    for limits in found:
        assert limits.context >= limits.prefill_chunk


def test_the_context_fills_what_is_left_page_by_page(needs):
    asked = {"prefill_chunk": 16}
    least = smallest(needs, **asked)
    page = FlatKV(layers=2, kv_heads=2, head_dim=32, page=32, dtype="float16").nbytes(32)
    assert needs(least, **asked).context == 32
    assert needs(least + page - 1, **asked).context == 32
    assert needs(least + page, **asked).context == 64
    assert needs(least + 3 * page, **asked).context == 128


def test_an_int8_cache_leaves_room_for_a_longer_context(needs):
    asked = {"context": 512, "prefill_chunk": 16}
    floats, int8 = (smallest(needs, **asked, kv_dtype=dtype) for dtype in ("float16", "int8"))
    shape = {"layers": 2, "kv_heads": 2, "head_dim": 32, "page": 32}
    saved = [FlatKV(**shape, dtype=dtype).nbytes(512) for dtype in ("float16", "int8")]
    assert floats - int8 == saved[0] - saved[1]


@pytest.mark.parametrize(
    "asked", [{"context": 300}, {"prefill_chunk": 100}, {"context": 300, "prefill_chunk": 100}]
)
def test_what_was_asked_for_stays(needs, asked):
    limits = needs(smallest(needs, **asked), **asked)
    assert {name: getattr(limits, name) for name in asked} == asked
    assert limits.prefill_chunk <= limits.context


def test_a_larger_chunk_costs_what_planning_says(needs):
    """Twice the tokens, twice the activations, decode's and the logits aside."""
    context = {"context": 512}
    costs = {n: smallest(needs, prefill_chunk=n, **context) for n in (64, 128, 256)}
    once, twice = costs[128] - costs[64], costs[256] - costs[128]
    assert twice == pytest.approx(2 * once, rel=0.05)


def test_the_worst_of_two_libraries_decides(subject):
    def least(name):
        with pytest.raises(TargetError) as error:
            prepare(subject, find_target(name), "q4f16_1", Options(memory_budget=0))
        return total(error)

    rows = [least("cpu-x86-64-v3"), least("cpu-x86-64-v4")]
    assert least("cpu-x86-64-v3+v4") == max(rows)


def test_activations_are_what_the_allocator_keeps():
    from mlc_compile.passes.plan_memory import FunctionMemory

    def function(name, workspace):
        return FunctionMemory(
            name=name,
            naive_bytes=0,
            static_plan_bytes=0,
            planned_bytes=1000,
            storages=1,
            lower_bound_bytes=0,
            result_bytes=100,
            workspace_bytes=workspace,
            steps=(),
            tensors=(),
        )

    functions = [function("prefill", 30), function("decode", 70), function("score", 10**9)]
    assert activation_bytes(functions) == 2 * (1100 + 2 * ALLOCATOR_PAGE) + THREADS * 70


@pytest.mark.usefixtures("hollow")
def test_the_command_compiles_for_the_limits_it_found(needs, nano_checkpoint, tmp_path, capsys):
    model = tmp_path / "bare"
    model.mkdir()
    shutil.copyfile(nano_checkpoint / "config.json", model / "config.json")
    budget = smallest(needs) // MIB + 1
    words = ["compile", model, "-o", tmp_path / "out", "--memory-budget", f"{budget}MiB"]
    assert invoke([*map(str, words)]) == 0
    limits = read_manifest(tmp_path / "out", Manifest).limits
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert limits.prefill_chunk < 512
    told = capsys.readouterr().err
    assert f"a prefill chunk of {limits.prefill_chunk} fit in the budget" in told
    memory = report["memory"]
    used = memory["weights"] + memory["kv_cache"] + memory["activations"]
    assert used + RUNTIME <= budget * MIB


@pytest.mark.parametrize(
    ("budget", "code", "told"),
    [("10MiB", 4, "over budget: weights"), ("much", 2, "--memory-budget must be a size")],
)
@pytest.mark.parametrize("command", ["build", "compile"])
def test_commands_refuse_before_they_begin(
    here, nano_checkpoint, tmp_path, command, budget, code, told
):
    ran = here(command, nano_checkpoint, "-o", tmp_path / "out", "--memory-budget", budget)
    assert (ran.code, ran.out) == (code, "")
    assert told in ran.err
    assert "Traceback" not in ran.err
    assert list(tmp_path.iterdir()) == []
