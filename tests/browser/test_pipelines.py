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

# [[whose, kernel, WGSL]] -> {whose: why there is no pipeline of it}. The layout is not left to the
# browser, since it would not count what a kernel declares and does not use.
MAKE_PIPELINES = """async sources => {
  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  const most = [device.limits.maxStorageBufferBindingSize,
                device.limits.maxComputeInvocationsPerWorkgroup];
  const types = {read: "read-only-storage", read_write: "storage"};
  const faults = {};
  for (const [whose, name, code] of sources) {
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
    const made = device.createComputePipelineAsync({layout, compute});
    await made.catch(e => faults[whose] = e.message);
    const {messages} = await module.getCompilationInfo();
    const said = messages.filter(m => m.type == "error").map(m => `${m.lineNum}: ${m.message}`);
    const error = await device.popErrorScope();
    if (said.length || error) faults[whose] = [...said, error?.message].join("; ");
  }
  return {faults, most};
}"""


@pytest.fixture(scope="module")
def libraries(cli, tmp_path_factory):
    """By the model's name, an artifact without weights."""
    return {name: compiled(cli, name, tmp_path_factory.mktemp(name)) for name in LAYOUTS}


def compiled(cli, name, place):
    model, out = place / name, place / ROW.name
    model.mkdir()
    shape = tomllib.loads((config_dir() / "models" / f"{name}.toml").read_text())
    told = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **shape}
    told["num_hidden_layers"] = LAYERS
    (model / "config.json").write_text(json.dumps(told))
    ran = cli("compile", model, "--target", ROW.name, "-o", out)
    assert ran.code == 0, ran.err
    return out


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


def test_a_browser_makes_a_pipeline_of_every_kernel(libraries, browser_page, serve):
    """Of one page, as a browser in software is slow to begin and to end; equal kernels once."""
    whose = {}
    for model, artifact in libraries.items():
        for kernel, code in kernels((artifact / ROW.library).read_bytes()).items():
            whose.setdefault((kernel, code), f"{kernel} of {model}")
    browser_page.goto(serve({"/": "<!doctype html><link rel='icon' href='data:,'>"}))
    sources = [[place, *source] for source, place in whose.items()]
    made = browser_page.evaluate(MAKE_PIPELINES, sources)
    assert made["most"] == [ROW.device.binding_bytes, ROW.device.threads]  # the defaults
    assert made["faults"] == {}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_weight_over_the_binding_limit_is_cut(libraries, name):
    tensors = read_manifest(libraries[name], Manifest).plan.tensors
    assert max(p.nbytes for t in tensors for p in t.parts) <= ROW.device.binding_bytes
    embedding = max(tensors, key=lambda tensor: sum(part.nbytes for part in tensor.parts))
    assert embedding.layout == LAYOUTS[name]
