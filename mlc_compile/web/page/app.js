// The page: loads the model, holds the conversation, shows what the device is and does.

import {Conversation} from "/conversation.js";
import {facts, look} from "/device.js";
import {load, sentence} from "/engine.js";
import {bytes, element, inline, rate} from "/format.js";

const $ = id => document.getElementById(id);
const FAILED = {title: "The model could not be loaded", todo: []};
const wide = matchMedia("(min-width: 900px)");
const conversation = new Conversation($("log"), (prefill, decode) => {
  $("prefill").textContent = rate(prefill);
  $("decode").textContent = rate(decode);
});
let engine;

start();

async function start() {
  wire();
  try {
    const told = await fetch("/artifact.json");
    if (!told.ok) throw new Error(await told.text());
    const about = await told.json();
    describe(about);
    const {adapter, limits, trouble} = await look(about);
    if (adapter) describeDevice(about, adapter, limits);
    if (trouble) return refuse(trouble);
    await open(about);
  } catch (error) {
    console.error(error);
    refuse({...FAILED, why: sentence(error)});
  }
}

async function open(about) {
  const began = performance.now();
  let source = "";
  say("busy", "Loading");
  $("loading-title").textContent = `Loading ${about.model}`;
  $("loading").hidden = false;
  engine = await load(about, (stages, share, from) => {
    source = from;
    $("bar").value = share;
    $("stages").replaceChildren(...stages.map(stage => element("li", [
      element("span", [stage.words]), element("span", [stage.much], {className: "much"}),
    ], {className: stage.state})));
  }, event => refuse({...FAILED, why: sentence(event.message || "The worker could not start.")}));
  $("loading").hidden = true;
  $("welcome").hidden = false;
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  say("ready", `Ready, loaded from ${source} in ${seconds} s`);
  $("new").disabled = false;
  offer();
  if (wide.matches) $("prompt").focus();
}

function wire() {
  $("composer").addEventListener("submit", event => {
    event.preventDefault();
    if (conversation.answering) conversation.stop(engine);
    else send($("prompt").value.trim());
  });
  $("prompt").addEventListener("input", () => { grow(); offer(); });
  $("prompt").addEventListener("keydown", event => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!conversation.answering) $("composer").requestSubmit();
  });
  $("new").addEventListener("click", begin);
  $("toggle").addEventListener("click", () => showPanel($("panel").hidden));
  $("examples").addEventListener("click", event => {
    if (event.target.matches("button")) send(event.target.textContent);
  });
  document.addEventListener("keydown", event => {
    if (event.key !== "Escape") return;
    if (conversation.answering) conversation.stop(engine);
    else if (!wide.matches && !$("panel").hidden) showPanel(false);
  });
  wide.addEventListener("change", () => showPanel(wide.matches));
  showPanel(wide.matches);
}

function showPanel(shown) {
  if (!shown && $("panel").contains(document.activeElement)) $("toggle").focus();
  $("panel").hidden = !shown;
  $("toggle").setAttribute("aria-expanded", String(shown));
}

async function send(question) {
  if (!engine || conversation.answering || !question) return;
  const settings = readSettings();
  if (!settings) return;
  if (!wide.matches) showPanel(false);
  $("welcome").hidden = true;
  $("prompt").value = "";
  grow();
  const answered = conversation.send(engine, question, settings);
  busy(true);
  await answered;
  busy(false);
}

async function begin() {
  await conversation.clear(engine);
  $("welcome").hidden = false;
  $("prompt").focus();
}

/** The fields, or undefined where one is wrong: the browser then says which. */
function readSettings() {
  const fields = [$("temperature"), $("limit")];
  const wrong = fields.find(field => !field.checkValidity());
  if (wrong) {
    showPanel(true);
    wrong.reportValidity();
    return undefined;
  }
  const temperature = $("temperature").value === "" ? undefined : Number($("temperature").value);
  return {temperature, limit: Number($("limit").value), reason: $("reason").checked};
}

function busy(now) {
  $("send").textContent = now ? "Stop" : "Send";
  $("send").className = now ? "stop" : "primary";
  say(now ? "busy" : "ready", now ? "Answering" : "Ready");
  offer();
}

function offer() {
  $("send").disabled = !engine || (!conversation.answering && !$("prompt").value.trim());
}

/** As high as what is written, where the browser does not see to it. */
function grow() {
  if (CSS.supports("field-sizing", "content")) return;
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

function say(kind, words) {
  $("status").className = kind;
  $("status").textContent = words;
}

function describe(about) {
  document.title = `${about.model} · mlc-compile`;
  $("model").replaceChildren(about.model, element("small", [`${about.quant} · ${about.target}`]));
  pairs($("artifact"), [
    ["Weights", bytes(about.nbytes.weights)],
    ["Library", bytes(about.nbytes.library)],
    ["Context", `${about.context} tokens`],
    ["Build", about.build],
    ["Runs in", about.web_llm_version],
  ]);
  $("limit").max = about.context;
  $("limit").value = Math.min(Number($("limit").value), about.context);
}

function describeDevice(about, adapter, limits) {
  pairs($("device"), facts(adapter, about));
  $("limits").tBodies[0].replaceChildren(...limits.map(({words, needed, here, short}) => element("tr", [
    element("th", [words], {scope: "row"}), element("td", [needed]), element("td", [here]),
  ], {className: short ? "short" : ""})));
}

function pairs(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) => [element("dt", [name]), element("dd", [value])]));
}

function refuse({title, why, todo}) {
  $("loading").hidden = true;
  const notice = $("notice");
  notice.querySelector("h2").textContent = title;
  notice.querySelector(".why").textContent = why;
  notice.querySelector("ul").replaceChildren(...todo.map(words => element("li", inline(words))));
  notice.hidden = false;
  $("prompt").disabled = true;
  say("failed", title);
}
