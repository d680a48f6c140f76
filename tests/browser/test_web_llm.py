"""The example in unmodified web-llm, in a browser: its tokens are those of the CPU's library.

Greedy texts of two backends part at the first near-tie, so tokens are compared by force: the CPU
reads what the browser wrote, and each token must be within MARGIN of what the CPU would choose.
"""

import importlib.util
import json

import numpy as np
import pytest

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs zig"),
]

# Both compute in float32, from the same INT4 weights: logits of some tens differ by the order of
# sums alone, some 1e-5; near-ties of float32 logits are decided by less than this.
MARGIN = 1e-3
PROMPT = "The function returns"
NUCLEUS = 0.9
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 1.5}
FORCED = 300  # a token
TOKENS = 16

# By name, what is asked of `engine.completions`, beside the prompt.
REQUESTS = {
    "greedy": {"temperature": 0, "max_tokens": TOKENS},
    "penalized": {"temperature": 0, "max_tokens": 12, **PENALTIES},
    "sampled": {"temperature": 1.0, "top_p": NUCLEUS, "max_tokens": 12, "seed": 7},
    "biased": {"temperature": 0, "max_tokens": 2, "logit_bias": {str(FORCED): 100}},
}
# And of `engine.chat.completions`, which alone looks at grammars.
CHAT = {
    "messages": [{"role": "user", "content": "Is it?"}],
    "temperature": 1.0,
    "max_tokens": 4,
    "response_format": {"type": "grammar", "grammar": 'root ::= "yes" | "no"'},
}

PAGE = """<!doctype html><link rel="icon" href="data:,"><script type="module">
import * as webllm from "/web-llm.js";
const answers = {};
try {
  const model = {model_id: "m", model: location.origin + "/model/",
                 model_lib: location.origin + "/model/lib.wasm"};
  const engine = await webllm.CreateMLCEngine("m", {appConfig: {model_list: [model]}});
  for (const [name, request] of Object.entries(REQUESTS)) {
    const given = {prompt: PROMPT, logprobs: true, top_logprobs: 1, ...request};
    const choice = (await engine.completions.create(given)).choices[0];
    answers[name] = {text: choice.text, tokens: choice.logprobs.content.map(c => c.token)};
  }
  const chat = await engine.chat.completions.create(CHAT);
  answers.chat = chat.choices[0].message.content;
} catch (error) { answers.error = error.stack || String(error); }
window.answers = answers;
</script>"""


@pytest.fixture(scope="module")
def web_artifact(cli, tiny_checkpoint, tmp_path_factory):
    """The example built for browsers."""
    out = tmp_path_factory.mktemp("web")
    ran = cli("build", tiny_checkpoint, "--target", "webgpu", "-o", out)
    assert ran.code == 0, ran.err
    return out / f"{tiny_checkpoint.name}-q4f32_1" / "webgpu"


@pytest.fixture(scope="module")
def answers(web_artifact, web_llm, serve, browser_page):
    """What web-llm answered to each of REQUESTS, and to CHAT."""
    given = {"REQUESTS": REQUESTS, "PROMPT": PROMPT, "CHAT": CHAT}
    lines = [f"const {name} = {json.dumps(value)};" for name, value in given.items()]
    page = PAGE.replace("const answers", "\n".join([*lines, "const answers"]))
    address = serve({"/": page, "/web-llm.js": web_llm, "/model/": web_artifact})
    said = []
    browser_page.on("console", lambda message: said.append(message.text))
    browser_page.on("pageerror", lambda error: said.append(str(error)))
    browser_page.goto(address)
    browser_page.wait_for_function("window.answers", timeout=300_000)
    found = browser_page.evaluate("window.answers")
    assert "error" not in found, "\n".join([found["error"], *said])
    return found


@pytest.fixture(scope="module")
def tokenizer(web_artifact):
    """The model's."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(web_artifact / "tokenizer.json"))


@pytest.fixture(scope="module")
def logits_along(build_model, tiny_checkpoint, tokenizer):
    """`logits_along(tokens)`: the CPU's, before each token that follows the prompt."""
    from mlc_compile.runtime.engine import open_engine

    engine = open_engine(build_model(tiny_checkpoint, "q4f32_1", "--activations", "float32"))

    def read(tokens):
        engine.rewind()
        rows = [engine.prefill(tokenizer.encode(PROMPT).ids).copy()]
        rows += [engine.decode(token).copy() for token in tokens[:-1]]
        return np.stack(rows)

    return read


@pytest.fixture(scope="module")
def ids(answers, tokenizer):
    """`ids(name)`: the tokens of an answer, by their texts, which must be of one token each."""
    texts = {}
    for token in range(tokenizer.get_vocab_size()):
        texts.setdefault(tokenizer.decode([token]), []).append(token)

    def read(name):
        found = [texts[text] for text in answers[name]["tokens"]]
        assert all(len(tokens) == 1 for tokens in found), "another prompt would be told apart"
        return [tokens[0] for tokens in found]

    return read


def lost(logits, tokens):
    """By how much each token's logit is below the best one."""
    return logits.max(-1) - logits[np.arange(len(tokens)), tokens]


def test_greedy_tokens_are_the_cpus(answers, ids, logits_along):
    tokens = ids("greedy")
    assert len(tokens) == TOKENS
    assert len(set(tokens)) > TOKENS / 4, answers["greedy"]["text"]  # a text, not one word
    assert lost(logits_along(tokens), tokens).max() < MARGIN


def test_penalties_lower_what_was_written(ids, logits_along):
    tokens = ids("penalized")
    logits = logits_along(tokens)
    for i in range(1, len(tokens)):
        seen, counts = np.unique(tokens[:i], return_counts=True)
        logits[i, seen] -= PENALTIES["presence_penalty"] + PENALTIES["frequency_penalty"] * counts
    assert lost(logits, tokens).max() < MARGIN
    assert lost(logits_along(tokens), tokens).max() > MARGIN  # they made a difference


def test_sampled_tokens_are_of_the_nucleus(ids, logits_along):
    tokens = ids("sampled")
    logits = logits_along(tokens).astype(np.float64)
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    mine = chances[np.arange(len(tokens)), tokens]
    above = np.where(chances > mine[:, None] + MARGIN, chances, 0).sum(-1)
    assert (above < NUCLEUS).all()
    assert lost(logits, tokens).max() > MARGIN  # not the greedy text: it was drawn


def test_a_bias_forces_a_token(ids):
    assert ids("biased") == [FORCED] * 2


def test_a_grammar_leaves_its_own_texts(answers):
    assert answers["chat"] in {"yes", "no"}
