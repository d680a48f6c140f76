// The conversation: questions, answers as they grow, and what they cost.

import {ask, sentence} from "/engine.js";
import {blocks, element, parted, rate} from "/format.js";

const FRAME = 40;  // milliseconds between two drawings of an answer
const NEAR = 80;  // pixels from the end within which the view follows what is written

/** Questions and answers in `log`, in a view that scrolls. `measured` is told each answer's speed. */
export class Conversation {
  #messages = [];
  #log;
  #measured;
  #running;

  constructor(log, measured) {
    this.#log = log;
    this.#measured = measured;
  }

  get answering() {
    return this.#running !== undefined;
  }

  /** Ask, and write the answer; ends when the answer does, whatever happens. */
  async send(engine, question, settings) {
    this.#log.append(element("article", [element("div", [question], {className: "text"})], {className: "user"}));
    this.#messages.push({role: "user", content: question});
    const shown = answerArticle();
    this.#log.append(shown.article);
    this.#log.setAttribute("aria-busy", "true");  // read aloud once, when it is whole
    this.#running = this.#answer(engine, shown, settings);
    await this.#running;
    this.#running = undefined;
    this.#log.setAttribute("aria-busy", "false");
  }

  /** End the answer that is being written; what is there stays. */
  async stop(engine) {
    if (!this.answering) return;
    await engine.interruptGenerate();
    await this.#running;
  }

  /** Forget everything. */
  async clear(engine) {
    await this.stop(engine);
    this.#messages = [];
    this.#log.replaceChildren();
    await engine.resetChat();
  }

  async #answer(engine, shown, settings) {
    try {
      await this.#stream(engine, shown, settings);
      // As the model's own template does: what it thought is not told to it again.
      this.#messages.push({role: "assistant", content: parted(shown.article.source).answer});
    } catch (error) {
      console.error(error);
      this.#messages.pop();
      shown.foot.append(element("span", [sentence(error)], {className: "failed"}));
    } finally {
      shown.article.classList.remove("busy");
      this.#draw(shown);
    }
  }

  async #stream(engine, shown, settings) {
    this.#follow();
    let timer;
    for await (const {text, finish, usage} of ask(engine, this.#messages, settings)) {
      shown.article.source = text;
      timer ??= setTimeout(() => { timer = undefined; this.#draw(shown); }, FRAME);
      if (finish) this.#conclude(shown, finish, usage, settings);
    }
    clearTimeout(timer);
  }

  #draw({article, text, reasoning}) {
    const view = this.#log.parentElement;
    const near = view.scrollHeight - view.scrollTop - view.clientHeight < NEAR;
    const {reasoning: thought, answer} = parted(article.source);
    if (thought && reasoning.hidden) reasoning.open = true;
    if (answer && text.childElementCount === 0) reasoning.open = false;
    reasoning.hidden = !thought;
    reasoning.lastChild.textContent = thought;
    text.replaceChildren(...blocks(answer));
    if (near) this.#follow();
  }

  #follow() {
    const view = this.#log.parentElement;
    view.scrollTop = view.scrollHeight;
  }

  #conclude({article, foot}, finish, usage, settings) {
    const told = [];
    if (usage) {
      const {prefill_tokens_per_s: prefill, decode_tokens_per_s: decode} = usage.extra;
      this.#measured(prefill, decode);
      told.push(`${usage.completion_tokens} tokens`, `prefill ${rate(prefill)}`, `decode ${rate(decode)} tok/s`);
    }
    if (finish === "length") told.push(`ended at the limit of ${settings.limit} tokens`);
    if (finish === "abort") told.push("stopped");
    foot.replaceChildren(copyButton(article), ...told.map(words => element("span", [words])));
  }
}

/** The parts of an answer; `article.source` is its text as the model wrote it. */
function answerArticle() {
  const text = element("div", [], {className: "text"});
  const summary = element("summary", ["Reasoning"]);
  const reasoning = element("details", [summary, element("div")], {className: "reasoning", hidden: true});
  const foot = element("div", [], {className: "foot"});
  const article = element("article", [reasoning, text, foot], {className: "assistant busy", source: ""});
  return {article, text, reasoning, foot};
}

function copyButton(article) {
  const button = element("button", ["Copy"], {type: "button"});
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(article.source);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
  });
  return button;
}
