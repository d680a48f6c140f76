// What the page uses of web-llm, without a model: answers are by the words of the question.

export class WebWorkerMLCEngineHandler {
  onmessage() {}
}

const pause = () => new Promise(done => setTimeout(done, 5));

export async function CreateWebWorkerMLCEngine(_worker, id, config) {
  const [model] = config.appConfig.model_list;
  const told = (text, progress) => config.initProgressCallback({text, progress, timeElapsed: 0});
  const cache = await caches.open("webllm/model");
  const shard = `${model.model}resolve/main/params_shard_0.bin`;
  told("Start to fetch params", 0);
  if (!(await cache.match(shard))) {
    await cache.add(shard);
    told("Fetching param cache[1/2]: whatever", 0.5);
    while (window.hold) await pause();
  }
  told("Loading model from cache[1/2]: whatever", 1);
  told("Loading GPU shader modules[1/2]: whatever", 0.5);
  if (window.broken) throw new Error(window.broken);
  told("Finish loading on WebGPU", 1);
  window.model = {id, ...model};
  return new Engine();
}

class Engine {
  #stopped = false;
  chat = {completions: {create: request => this.#create(request)}};

  async interruptGenerate() {
    this.#stopped = true;
  }

  async resetChat() {}

  async #create(request) {
    window.requests = [...(window.requests ?? []), structuredClone(request)];
    this.#stopped = false;
    return this.#stream(request.messages.at(-1).content);
  }

  async* #stream(question) {
    const words = window.answers?.[question] ?? "It is so.";
    if (words === "error") throw new Error("Device was lost. This can happen.\n at once");
    let finish = "stop";
    for (let i = 0; words === "endless" || i < words.length; i += 4) {
      await pause();
      if (this.#stopped) { finish = "abort"; break; }
      yield {choices: [{delta: {content: words === "endless" ? "on " : words.slice(i, i + 4)}}]};
    }
    yield {choices: [{delta: {}, finish_reason: finish}]};
    const extra = {prefill_tokens_per_s: 812.4, decode_tokens_per_s: 41.26};
    yield {choices: [], usage: {completion_tokens: 3, prompt_tokens: 9, extra}};
  }
}
