// The model in web-llm: loading it, with what the wait is for, and asking it.

import {bytes} from "/format.js";

const CACHES = ["webllm/config", "webllm/model", "webllm/wasm"];

const BROWSER = "this browser’s cache";
const SERVER = "the server";

// How web-llm's reports begin, and which stage each is of.
const FETCHING = "Fetching param cache";
const REPORTS = [
  ["Start to fetch params", "weights"],
  [FETCHING, "weights"],
  ["Loading model from cache", "upload"],
  ["Loading GPU shader modules", "shaders"],
  ["Finish loading", "end"],
];
const ORDER = ["library", "weights", "upload", "shaders", "end"];

/** The stages of loading, as `show(stages, share, source)` draws them. */
function stagesOf(about) {
  const {library, weights, rest} = about.nbytes;
  return [
    {name: "library", words: "Library and tokenizer", much: bytes(library + rest), share: 0.1},
    {name: "weights", words: "Weights", much: bytes(weights), share: 0.6},
    {name: "upload", words: "To the GPU", much: "", share: 0.15},
    {name: "shaders", words: "Shaders", much: "", share: 0.15},
  ];
}

/** An engine with the model in it. `show` is told how far it is; `lost` if the worker dies. */
export async function load(about, show, lost) {
  const kept = await forgetOtherBuilds(about);
  const webllm = await import(about.web_llm);
  const worker = new Worker(`/worker.js?web-llm=${encodeURIComponent(about.web_llm)}`, {type: "module"});
  worker.onerror = lost;
  const record = {
    model_id: about.model,
    model: new URL(about.address, location.origin).href,
    model_lib: new URL(about.library, location.origin).href,
    required_features: about.features,
  };
  const progress = watch(about, kept, show);
  progress({text: "", progress: 0});
  return webllm.CreateWebWorkerMLCEngine(worker, about.model, {
    appConfig: {model_list: [record]},
    initProgressCallback: progress,
    logLevel: "WARN",
  });
}

/** Turns web-llm's reports into our stages. */
function watch(about, kept, show) {
  const stages = stagesOf(about);
  let source = kept ? BROWSER : SERVER;
  return report => {
    const name = REPORTS.find(([words]) => report.text.startsWith(words))?.[1] ?? "library";
    if (report.text.startsWith(FETCHING)) source = SERVER;  // what was kept is not all
    const now = ORDER.indexOf(name);
    stages.forEach((stage, i) => { stage.state = i < now ? "done" : i === now ? "now" : ""; });
    const share = Math.min(1, report.progress);
    if (name === "weights") stages[1].much = `${bytes(share * about.nbytes.weights)} of ${bytes(about.nbytes.weights)}, from ${source}`;
    if (now > 1) stages[1].much = `${bytes(about.nbytes.weights)}, from ${source}`;
    if (now > 1 && now < 4) stages[now].much = `${Math.floor(share * 100)} %`;
    const before = stages.slice(0, now).reduce((sum, stage) => sum + stage.share, 0);
    show(stages, before + (stages[now]?.share ?? 0) * share, source);
  };
}

/** Drop what an older build of this model left in the browser; whether this one is there. */
async function forgetOtherBuilds(about) {
  const own = new URL(about.address, location.origin).href;
  const family = new URL("..", own).href;
  let kept = false;
  for (const name of CACHES) {
    const cache = await caches.open(name);
    for (const request of await cache.keys()) {
      if (request.url.startsWith(own)) kept ||= request.url.endsWith(".bin");
      else if (request.url.startsWith(family)) await cache.delete(request);
    }
  }
  return kept;
}

/** Stream an answer: `{text}` as it grows, at last with `finish` and `usage`. */
export async function* ask(engine, messages, settings) {
  const stream = await engine.chat.completions.create({
    messages,
    stream: true,
    stream_options: {include_usage: true},
    max_tokens: settings.limit,
    ...(settings.temperature === undefined ? {} : {temperature: settings.temperature}),
    ...(settings.reason ? {} : {extra_body: {enable_thinking: false}}),
  });
  let text = "", finish, usage;
  for await (const chunk of stream) {
    const choice = chunk.choices[0];
    text += choice?.delta.content ?? "";
    finish = choice?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
    if (choice) yield {text};
  }
  yield {text, finish, usage};
}

// What a message is about -> what to say instead.
const FAILURES = [
  [/failed to fetch|networkerror|load failed|dynamically imported/i, "The server does not answer. Is mlc-compile web still running?"],
  [/quota/i, "The browser has no room left for the weights. Free some storage, then load the page again."],
  [/contextwindowsize|context window/i, "This conversation does not fit in the model’s context any more. Start a new one."],
  [/device.*lost|not loaded|modelnotloaded/i, "The GPU was lost, most likely because its memory ran out. Load the page again."],
  [/out of memory|allocation failed/i, "There is not enough memory for the model. Close other pages, then load this one again."],
];

/** An error in a sentence. */
export function sentence(error) {
  const text = String(error?.message || error);
  const known = FAILURES.find(([pattern]) => pattern.test(text));
  return known ? known[1] : text.split("\n")[0];
}
