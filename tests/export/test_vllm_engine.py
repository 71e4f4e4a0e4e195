"""vLLM's engine generates what our engine does, from every mixer and with every way of running it.

`bash scripts/test_vllm.sh` makes an environment with vLLM for the CPU, runs these tests and prints their table.
"""

import multiprocessing
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from copy import deepcopy
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
from exported import make_calling_run, make_run
from generate_models import by_sample, random_prompt

from nanogka.export import export_run
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SamplingParams

pytest.importorskip("vllm")

pytestmark = pytest.mark.slow

MODELS = {
    "gaussian": {"pattern": "G"},
    "successor": {"pattern": "S"},
    "dot_product": {"pattern": "D"},
    "value_less": {"pattern": "V"},
    "dot_product, short_conv 4": {"pattern": "D", "short_conv": 4},
    "successor, July": {"pattern": "S", "network": "july"},
    "gaussian, July": {"pattern": "G", "network": "july"},
    "dot_product, July": {"pattern": "D", "network": "july"},
    "dot_product, successor keys, temperature": {"pattern": "D", "successor_keys": True, "learned_temperature": True},
}
FETCHING = ("successor", "dot_product, short_conv 4", "successor, July")  # which look back by `Fetch`
TOKENS, CONTEXT = 64, 512
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 300, 377, 410, 447)  # windows: 256, July 128
PROMPTS = [random_prompt(length, seed) for seed, length in enumerate(LENGTHS)]
COMPILED = {"enable_prefix_caching": False}
EAGER = COMPILED | {"enforce_eager": True}
CHUNKED = EAGER | {"max_num_batched_tokens": 64, "enable_chunked_prefill": True}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SERVE = ("--dtype", "float32", "--enforce-eager", "--max-model-len", "128", "--served-model-name", "chat")
STOCK = {"model_impl": "transformers", "trust_remote_code": True}

# Each group runs in one process: (model, how, options). vLLM starts no other engine in a process after a compiled or
# speculative one.
GROUPS = {
    "Transformers back-end": [(m, "eager", EAGER | STOCK) for m in ("gaussian", "dot_product", "value_less")]
    + [("gaussian", "bfloat16", EAGER | STOCK | {"dtype": "bfloat16"})],
    "Transformers back-end, compiled": [("gaussian", "compiled", COMPILED | STOCK)],
    "plugin, eager": [(model, "eager", EAGER) for model in MODELS],
    "plugin": [(model, "bfloat16", EAGER | {"dtype": "bfloat16"}) for model in ("gaussian", "successor")]
    + [(model, "chunked prefill", CHUNKED) for model in FETCHING]
    + [(model, "prefix cache", EAGER | {"enable_prefix_caching": True}) for model in FETCHING],
    "plugin, compiled gaussian": [("gaussian", "compiled", COMPILED)],
    "plugin, compiled successor": [("successor", "compiled", COMPILED)],
    "plugin, speculative successor": [("successor", "speculative", EAGER | {"speculative_config": NGRAM})],
    "plugin, two ranks": [("successor", "two ranks", EAGER | {"tensor_parallel_size": 2})],
}


def environment(tmp_path):
    """Variables of a process that runs vLLM on one core and asks nobody for anything."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_MODULES_CACHE": str(tmp_path),
        "VLLM_NO_USAGE_STATS": "1",
    }


def generate_with_vllm(variables, jobs):
    """For each job (folder, options): [(tokens, logprobs)] of the prompts, and the number of positions from the cache.

    Runs in its own process. The prompts are generated twice, so that the second pass can find them in a prefix cache.
    """
    os.environ.update(variables)
    from vllm import LLM
    from vllm import SamplingParams as Params
    from vllm.distributed import cleanup_dist_env_and_memory
    from vllm.inputs import TokensPrompt

    params = Params(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=0, detokenize=False)
    prompts, found = [TokensPrompt(prompt_token_ids=prompt) for prompt in PROMPTS], []
    for folder, options in jobs:
        llm = LLM(folder, skip_tokenizer_init=True, max_model_len=CONTEXT, max_num_seqs=16, **options)
        cached = options["enable_prefix_caching"]
        outputs = [llm.generate(prompts, params, use_tqdm=False) for _ in range(1 + cached)][-1]
        texts = [output.outputs[0] for output in outputs]
        pairs = [
            (list(text.token_ids), [s[t].logprob for s, t in zip(text.logprobs, text.token_ids)]) for text in texts
        ]
        found.append((pairs, sum(output.num_cached_tokens or 0 for output in outputs)))
        del llm
        cleanup_dist_env_and_memory()
    return found


def generate_with_ours(run, dtype):
    """[(tokens, logprobs)] of the prompts."""
    engine = Engine(deepcopy(run.model).to_compute(dtype), run.tokenizer)  # a copy: rounding cannot be undone
    texts = by_sample(engine.stream(PROMPTS, SamplingParams(temperature=0), max_tokens=TOKENS, stop_tokens=()))
    return [([o.token for o in texts[i]], [o.logprob for o in texts[i]]) for i in range(len(PROMPTS))]


def compare(found, expected):
    """The number of texts with equal tokens, and the largest difference of logprobs up to the first other token."""
    same, worst = 0, 0.0
    for (tokens, values), (wanted, logprobs) in zip(found, expected, strict=True):
        same += tokens == wanted
        alike = next((i for i, pair in enumerate(zip(tokens, wanted)) if len(set(pair)) > 1), TOKENS)
        worst = max([worst, *(abs(a - b) for a, b in zip(values[:alike], logprobs))])
    return same, worst


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{model: its run}; the folder of the run lies next to `exported`."""
    made = {}
    for number, (name, options) in enumerate(MODELS.items()):
        folder = tmp_path_factory.mktemp(f"model{number}")
        made[name] = make_run(folder / "run", sequence_len=CONTEXT, n_embd=128, **options)
        export_run(made[name], folder / "exported")
    return made


@pytest.mark.parametrize("group", GROUPS)
def test_vllm_generates_our_tokens(runs, group, tmp_path, capsys):
    torch.set_num_threads(1)
    variables = environment(tmp_path)
    if not group.startswith("plugin"):
        variables["VLLM_PLUGINS"] = "none"  # as if nanogka was not installed
    if "ranks" not in group:
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    jobs = [
        (str(runs[model].folder.parent / "exported"), {"dtype": "float32"} | options)
        for model, _, options in GROUPS[group]
    ]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        results = pool.submit(generate_with_vllm, variables, jobs).result()
    failed = []
    for (model, how, _), (found, cached) in zip(GROUPS[group], results, strict=True):
        expected = generate_with_ours(runs[model], torch.float32)
        (same, worst), note = compare(found, expected), f"{cached:,} positions from the cache" * (how == "prefix cache")
        if how == "bfloat16":  # its rounding alone changes tokens, so our own bfloat16 is the measure
            ours = compare(generate_with_ours(runs[model], torch.bfloat16), expected)
            note = f"our bfloat16: {ours[0]} of 16, {ours[1]:.1e}"
            failed += [(model, how, note)] * (worst > 2 * ours[1])
        elif same < 16 or worst > 5e-5 or (how == "prefix cache" and not cached):
            failed.append((model, how, same, worst, cached))
        with capsys.disabled():
            print(f"\n| {group.split(',')[0]} | {model} | {how} | {same} of 16 | {worst:.1e} | {note} |", end="")
    assert not failed


@pytest.fixture
def server(tmp_path):
    """The address of `vllm serve` with the tool parser, for a model that calls the calculator."""
    out = export_run(make_calling_run(tmp_path / "run"), tmp_path / "exported")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "serve",
        str(out),
        "--port",
        str(port),
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "nanogka",
        *SERVE,
    ]
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", *words]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, env=os.environ | environment(tmp_path), stdout=log, stderr=log)
    try:
        for _ in range(600):
            assert process.poll() is None, (tmp_path / "log").read_text()[-3000:]
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(1)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(60)


def test_the_loop_of_the_document_gets_an_answer_from_a_server_eager(server):
    """README's question, by the code of docs/serving.md, and the same call in a stream."""
    from openai import OpenAI

    client = OpenAI(base_url=server, api_key="none")
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (code,) = (block.split("```")[0] for block in page.split("```python")[1:] if "CALCULATOR" in block.split("```")[0])
    exec(code, variables := {"client": client})
    assert [message["role"] for message in variables["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert variables["message"].content == "9"
    chunks = client.chat.completions.create(
        **variables["request"] | {"messages": variables["messages"][:1], "stream": True}
    )
    deltas = [choice for chunk in chunks for choice in chunk.choices]
    calls = [call for choice in deltas for call in choice.delta.tool_calls or []]
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("calculator", '{"expression": "2 + 4 + 3"}')
    ]
    assert deltas[-1].finish_reason == "tool_calls"
    assert not any(choice.delta.content for choice in deltas)
    messages = [{"role": "user", "content": "How do you spell kif?"}]
    for tools in ({}, {"tools": variables["request"]["tools"]}):
        reply = client.chat.completions.create(model="chat", messages=messages, temperature=0, **tools)
        assert reply.choices[0].message.content == "k i f"
