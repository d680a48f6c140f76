"""Libraries of the published shapes, without weights, for browsers with WebGPU's default limits:
a browser compiles every kernel, and makes a pipeline of it as web-llm would.

`compile` itself names a kernel or weight that is over a limit of the target.
"""

import importlib.util
import json
import re
import tomllib

import pytest

from mlc_compile.artifact import Manifest, read_manifest
from mlc_compile.target import config_dir, find_target

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs zig"),
]

ROW = find_target("webgpu")
LAYOUTS = {  # of the embedding: 151,936 rows of INT4 codes, the first whole in one binding
    "qwen3-0.6b": "plain",
    "qwen3-1.7b": "plain2",
    "qwen3-4b": "plain2",
}
LAYERS = 3  # the first, one like all others, and the last: more would bring no other kernel
HEADING = re.compile(rb"//-{40}\n// Function: (\w+)\n")
COUNT = 8  # bytes of the number before whatever has a length, in a module of TVM's

# {kernel: WGSL} -> {kernel: why there is no pipeline of it}. The layout is not left to the browser,
# since it would not count what a kernel declares and does not use.
MAKE_PIPELINES = """async sources => {
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  const most = [device.limits.maxStorageBufferBindingSize,
                device.limits.maxComputeInvocationsPerWorkgroup];
  const types = {read: "read-only-storage", read_write: "storage"};
  const faults = {};
  for (const [name, code] of Object.entries(sources)) {
    device.pushErrorScope("validation");
    const module = device.createShaderModule({code});
    const declared = code.matchAll(/@binding\\((\\d+)\\) var<(?:uniform|storage, (\\w+))>/g);
    const entries = [...declared].map(([_, binding, access]) => ({
      binding: Number(binding), visibility: GPUShaderStage.COMPUTE,
      buffer: {type: access ? types[access] : "uniform"},
    }));
    const group = device.createBindGroupLayout({entries});
    const layout = device.createPipelineLayout({bindGroupLayouts: [group]});
    const compute = {module, entryPoint: name};
    await device.createComputePipelineAsync({layout, compute}).catch(e => faults[name] = e.message);
    const {messages} = await module.getCompilationInfo();
    const said = messages.filter(m => m.type == "error").map(m => `${m.lineNum}: ${m.message}`);
    const error = await device.popErrorScope();
    if (said.length || error) faults[name] = [...said, error?.message].join("; ");
  }
  return {faults, most};
}"""


@pytest.fixture(scope="module", params=LAYOUTS)
def library(request, cli, tmp_path_factory):
    """(the model's name, an artifact without weights)."""
    model = tmp_path_factory.mktemp("model") / request.param
    model.mkdir()
    shape = tomllib.loads((config_dir() / "models" / f"{request.param}.toml").read_text())
    told = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **shape}
    told["num_hidden_layers"] = LAYERS
    (model / "config.json").write_text(json.dumps(told))
    out = tmp_path_factory.mktemp("out") / ROW.name
    ran = cli("compile", model, "--target", ROW.name, "-o", out)
    assert ran.code == 0, ran.err
    return request.param, out


def kernels(content):
    """WGSL of each kernel in a library, where it lies as counted text that tells its name."""
    found, places = {}, list(HEADING.finditer(content))
    for place in places:
        start = place.start()
        size = int.from_bytes(content[start - COUNT : start], "little")
        found[place[1].decode()] = content[start : start + size].decode()
    first = places[0].start() - COUNT - len(places[0][1]) - COUNT
    assert len(found) == int.from_bytes(content[first - COUNT : first], "little")
    return found


def test_a_browser_makes_a_pipeline_of_every_kernel(library, browser_page, serve):
    _, artifact = library
    sources = kernels((artifact / ROW.library).read_bytes())
    browser_page.goto(serve({"/": "<!doctype html><link rel='icon' href='data:,'>"}))
    made = browser_page.evaluate(MAKE_PIPELINES, sources)
    assert made["most"] == [ROW.device.binding_bytes, ROW.device.threads]  # the defaults
    assert made["faults"] == {}


def test_a_weight_over_the_binding_limit_is_cut(library):
    name, artifact = library
    tensors = read_manifest(artifact, Manifest).plan.tensors
    assert max(p.nbytes for t in tensors for p in t.parts) <= ROW.device.binding_bytes
    embedding = max(tensors, key=lambda tensor: sum(part.nbytes for part in tensor.parts))
    assert embedding.layout == LAYOUTS[name]
