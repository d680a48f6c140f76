// What this browser's GPU is, and whether the model can run on it.

import {bytes} from "/format.js";

// By WebGPU's name: in words, and how a number of it is written.
const LIMITS = {
  maxBufferSize: ["Buffer", bytes],
  maxStorageBufferBindingSize: ["Storage binding", bytes],
  maxStorageBuffersPerShaderStage: ["Buffers of a shader", String],
  maxComputeWorkgroupStorageSize: ["Workgroup memory", bytes],
  maxComputeInvocationsPerWorkgroup: ["Workgroup threads", String],
};
const BROWSERS = "Use a current Chrome or Edge, Firefox, or Safari 26: they have WebGPU.";
const REBUILD = "Build the model for the limits that WebGPU promises everywhere: `mlc-compile build MODEL --target webgpu`";
const OTHER = "web-llm asks every device for as much: use another GPU, or another browser.";

/** The adapter; or `trouble`, a notice of what is missing and what to do. */
export async function look(about) {
  if (!window.isSecureContext) return {trouble: insecure()};
  if (!navigator.gpu) return {trouble: absent()};
  const adapter = await navigator.gpu.requestAdapter({powerPreference: "high-performance"});
  if (!adapter) return {trouble: noAdapter()};
  const missing = about.features.filter(name => !adapter.features.has(name));
  const limits = rows(adapter, about);
  const short = limits.filter(limit => limit.short);
  if (missing.length) return {adapter, limits, trouble: lacking(missing, about)};
  return {adapter, limits, trouble: short.length ? tooSmall(short) : undefined};
}

/** What to show of an adapter: pairs of name and value. */
export function facts(adapter, about) {
  const {vendor, architecture, device, description} = adapter.info ?? {};
  const family = [vendor, architecture].filter(Boolean).join(", ");
  const names = [description || device, family].filter(Boolean);
  return [
    ["GPU", names.join(", ") || "the browser does not say"],
    ...["shader-f16", "subgroups"].map(name => [name, presence(name, adapter, about)]),
  ];
}

function presence(feature, adapter, about) {
  if (adapter.features.has(feature)) return "yes";
  return about.features.includes(feature) ? "no, and the model needs it" : "no, and not needed";
}

function rows(adapter, about) {
  return Object.entries(about.limits).map(([name, needed]) => {
    const [words, write] = LIMITS[name] ?? [name, String];
    const here = adapter.limits[name] ?? 0;
    const fixed = here < about.web_llm_limits[name];  // no other build would need less
    return {words, needed: write(needed), here: write(here), short: here < needed, fixed};
  });
}

function insecure() {
  const port = location.port || 80;
  return {
    title: "This address is not secure",
    why: `Browsers give WebGPU only to pages over HTTPS and from their own machine, and this one is at ${location.origin}.`,
    todo: [
      `Open http://127.0.0.1:${port} on the machine that serves the page.`,
      `Or forward its port here: \`ssh -L ${port}:127.0.0.1:${port} ${location.hostname}\``,
    ],
  };
}

function absent() {
  return {
    title: "This browser has no WebGPU",
    why: "The model runs on the GPU through WebGPU, which this browser does not offer.",
    todo: [BROWSERS, "On Linux, Chrome may want `chrome://flags/#enable-unsafe-webgpu` switched on."],
  };
}

function noAdapter() {
  return {
    title: "The browser found no GPU",
    why: "It has WebGPU, but no GPU that it may use.",
    todo: [
      "Switch on graphics acceleration in the browser’s settings, and start it again.",
      "Update the GPU’s driver; `chrome://gpu` tells why one is not used.",
    ],
  };
}

function lacking(missing, about) {
  return {
    title: `This GPU lacks ${missing.join(", ")}`,
    why: `${about.model} was built with float16 (${about.quant}), which needs ${missing.join(", ")}.`,
    todo: ["Build it with float32: `mlc-compile build MODEL --target webgpu`", BROWSERS],
  };
}

function tooSmall(short) {
  const told = short.map(({words, here, needed}) => `${words}: ${here} here, ${needed} needed.`);
  const todo = [short.some(limit => limit.fixed) ? OTHER : REBUILD];
  return {title: "This GPU is too small for the model", why: told.join(" "), todo};
}
