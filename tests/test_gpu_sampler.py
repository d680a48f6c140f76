"""The functions of a GPU library that choose a token, without a GPU: they choose what numpy does.

The nano model goes through the whole compiler, and TVM's virtual machine calls its functions on
the CPU with every kernel interpreted (`tests.simt`). What the kernels do by themselves is
tested beside them.
"""

import numpy as np
import pytest
import tvm
from tvm import relax

from mlc_compile.pipeline import phases
from mlc_compile.runtime.sampler import (
    BELOW_ONE,
    GREEDY,
    Sampler,
    Sampling,
    candidates_of,
    device_settings,
)
from mlc_compile.target import find_target
from tests.simt.model import interpreted
from tests.test_gpu_model import tvm_target

VOCAB = 512  # of nano
CASES = [("cuda-sm80", "q4f16_1"), ("vulkan", "q4f32_1")]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def vm(request, nano_plan) -> relax.VirtualMachine:
    """The compiled nano model; nothing here needs its weights."""
    name, scheme = request.param
    mod, plan = nano_plan(name, scheme)
    target = tvm_target(find_target(name))
    with target:
        for phase in phases(plan):
            for step in phase.passes:
                mod = step(mod)
    return interpreted(mod, target)


def argmax(vm, logits) -> int:
    return int(vm["argmax"](tensor(logits)).numpy()[0])


def sample(vm, logits, sampling, uniform) -> int:
    """As `runtime.vm` calls it."""
    settings = map(tvm.runtime.tensor, device_settings(sampling, VOCAB))
    drawn_by = tvm.runtime.tensor(np.array([uniform], np.float32))
    return int(vm["sample"](tensor(logits), *settings, drawn_by).numpy()[0])


def tensor(logits):
    return tvm.runtime.tensor(logits.reshape(1, 1, VOCAB))


def logits_of(seed: int) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal(VOCAB)).astype(np.float32)


def drawn_by_id(logits, sampling, uniform) -> int:
    """By the host's candidates and weights, in the order of ids."""
    ids, weights = candidates_of(logits, sampling)
    order = np.argsort(ids)
    mass = weights[order].cumsum()
    return int(ids[order][mass.searchsorted(uniform * mass[-1], side="right")])


def test_greedily_both_choose_what_the_host_does(vm):
    for seed in range(3):
        logits = logits_of(seed)
        best = Sampler(GREEDY).sample(logits)
        assert argmax(vm, logits) == best
        assert sample(vm, logits, GREEDY, 0.7) == best
        assert sample(vm, logits, Sampling(1.3, top_k=1), 0.7) == best


def test_of_equal_logits_the_first_is_chosen(vm):
    logits = np.full(VOCAB, -2, np.float32)
    logits[[300, 301, 511]] = 4
    assert argmax(vm, logits) == sample(vm, logits, GREEDY, 0.9) == 300
    assert sample(vm, logits, Sampling(1.0, top_k=1), 0.9) == 300


@pytest.mark.parametrize(
    "sampling",
    [Sampling(1.0), Sampling(0.6, 20, 0.95), Sampling(1e300, 10**12, 1.0), Sampling(1.0, 0, 1e-60)],
    ids=["everything", "both", "hot", "the least p"],
)
def test_a_token_is_drawn_in_the_order_of_ids(vm, sampling):
    """At uniforms so far from a candidate's edge that rounding does not matter."""
    logits = logits_of(9)
    for uniform in (0.125, 0.83):
        assert sample(vm, logits, sampling, uniform) == drawn_by_id(logits, sampling, uniform)


def test_the_ends_of_the_uniform_draw_the_first_and_the_last_candidate(vm):
    logits = np.full(VOCAB, -np.inf, np.float32)  # as a mask of all other tokens leaves them
    logits[[7, 40, 500]] = 1, 2, 1
    assert sample(vm, logits, Sampling(1.0), 0) == 7
    assert sample(vm, logits, Sampling(1.0), BELOW_ONE) == 500


def test_drawn_shares_are_the_hosts(vm):
    """One uniform in the middle of each candidate's share draws each candidate once."""
    logits, sampling = logits_of(4), Sampling(0.9, top_k=6)
    ids, weights = candidates_of(logits, sampling)
    order = np.argsort(ids)
    middles = (weights[order].cumsum() - weights[order] / 2) / weights.sum()
    assert [sample(vm, logits, sampling, u) for u in middles] == ids[order].tolist()


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_logits_of_which_none_is_finite_give_no_token(vm, broken):
    logits = np.full(VOCAB, broken, np.float32)
    assert argmax(vm, logits) == -1
    assert sample(vm, logits, GREEDY, 0.5) == -1
    assert sample(vm, logits, Sampling(1.0, top_p=0.9), 0.5) == -1


def test_one_infinite_logit_is_chosen_and_told(vm):
    logits = logits_of(1)
    logits[77] = np.inf
    assert argmax(vm, logits) == -1


def test_a_lone_nan_is_never_the_largest(vm):
    """Not found either: the engine looks at all logits of a prefill, where it would show."""
    logits = logits_of(1)
    best, logits[77] = int(logits.argmax()), np.nan
    assert best != 77
    assert argmax(vm, logits) == best


def test_softmax_gives_each_row_its_probabilities_at_its_temperature(vm):
    logits = np.stack([logits_of(1), logits_of(2)])[:, None]
    temperature = np.array([1.0, 0.5], np.float32)
    softmax = vm["softmax_with_temperature"]
    for rows in (1, 2):  # web-llm gives one
        given = map(tvm.runtime.tensor, (logits[:rows], temperature[:rows]))
        scaled = logits[:rows].astype(np.float64) / temperature[:rows, None, None]
        z = scaled - scaled.max(axis=-1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=-1, keepdims=True)
        # z is rounded three times, and its error is a share of exp(z); then come the sums.
        bound = (3 * np.abs(z).max() + 16) * 2**-24
        np.testing.assert_allclose(softmax(*given).numpy(), p, rtol=bound)
