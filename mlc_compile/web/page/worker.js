// web-llm in a thread of its own, so that the page answers while the model computes.
// The address of web-llm is in ours: what arrives before it is loaded waits for it.

const address = new URL(self.location.href).searchParams.get("web-llm");
const handler = import(address).then(webllm => new webllm.WebWorkerMLCEngineHandler());

self.onmessage = async event => (await handler).onmessage(event);
