"""vLLM's engine generates what our engine does, from every mixer and with every way of running it.

`bash scripts/test_vllm.sh` makes an environment with vLLM for the CPU, runs these tests and prints their table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from exported import make_run
from generate_models import random_prompt

from nanogka.export import export_run
from nanogka.model import KVCache

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
}
FETCHING = ("successor", "dot_product, short_conv 4", "successor, July")  # which look back by `Fetch`
TOKENS, CONTEXT = 64, 512
LENGTHS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 300, 377, 410, 447)  # windows: 256, July 128
EAGER = {"enforce_eager": True, "enable_prefix_caching": False}
COMPILED = {"enable_prefix_caching": False}
CHUNKED = EAGER | {"max_num_batched_tokens": 64, "enable_chunked_prefill": True}
CACHED = EAGER | {"enable_prefix_caching": True}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
SPECULATIVE = EAGER | {"speculative_config": NGRAM}
STOCK = {"model_impl": "transformers", "trust_remote_code": True}
BFLOAT16 = EAGER | {"dtype": "bfloat16"}

# Each group runs in one process: (model, how, options).
GROUPS = {
    "Transformers back-end": [
        *((model, "eager", EAGER | STOCK) for model in ("gaussian", "dot_product", "value_less")),
        ("gaussian", "bfloat16", BFLOAT16 | STOCK),
    ],
    "Transformers back-end, compiled": [("gaussian", "compiled", COMPILED | STOCK)],
    "plugin": [
        *((model, "eager", EAGER) for model in MODELS),
        *((model, "bfloat16", BFLOAT16) for model in ("gaussian", "successor")),
    ],
    "plugin, parts of a prompt": [
        *((model, "chunked prefill", CHUNKED) for model in FETCHING),
        *((model, "prefix cache", CACHED) for model in FETCHING),
    ],
    "plugin, compiled gaussian": [("gaussian", "compiled", COMPILED)],
    "plugin, compiled successor": [("successor", "compiled", COMPILED)],
    # vLLM starts no other engine in a process after one of these.
    **{f"plugin, speculative {model}": [(model, "speculative", SPECULATIVE)] for model in FETCHING[:2]},
    "plugin, two ranks": [("successor", "two ranks", EAGER | {"tensor_parallel_size": 2})],
}


@torch.no_grad()
def greedy(model, prompts):
    """For each prompt our tokens, their log-probabilities and those of the prompt."""
    longest, cache = max(map(len, prompts)), KVCache(model, len(prompts))
    padded = torch.tensor([prompt + [-1] * (longest - len(prompt)) for prompt in prompts])
    scores = model(padded, cache=cache).log_softmax(-1)
    given = scores[:, :-1].gather(2, padded[:, 1:, None].clamp_min(0))[..., 0]
    answers = [{"tokens": [], "generated": [], "prompt": g[: len(p) - 1].tolist()} for g, p in zip(given, prompts)]
    last = torch.stack([scores[row, len(prompt) - 1] for row, prompt in enumerate(prompts)])
    for _ in range(TOKENS):
        values, tokens = last.max(-1)
        for answer, value, token in zip(answers, values.tolist(), tokens.tolist()):
            answer["tokens"].append(token)
            answer["generated"].append(value)
        last = model(tokens[:, None], cache=cache)[:, 0].log_softmax(-1)
    return answers


def compare(found, expected):
    """(rows with the same tokens, largest differences of the log-probabilities generated and of the prompts')."""
    same, generated, prompt = 0, 0.0, 0.0
    for one, other in zip(found, expected, strict=True):
        same += one["tokens"] == other["tokens"]
        alike = next((i for i, (a, b) in enumerate(zip(one["tokens"], other["tokens"])) if a != b), TOKENS)
        pairs = zip(one["generated"][:alike], other["generated"])
        generated = max([generated, *(abs(a - b) for a, b in pairs)])
        prompt = max([prompt, *(abs(a - b) for a, b in zip(one["prompt"], other["prompt"]))])
    return same, generated, prompt


class Lab:
    """Exported models, made when they are asked for, and our engine's answers."""

    def __init__(self, folder):
        self.folder, self.runs, self.answers = folder, {}, {}
        self.prompts = [random_prompt(length, seed) for seed, length in enumerate(LENGTHS)]

    def export(self, name):
        if name not in self.runs:
            place = self.folder / str(len(self.runs))
            self.runs[name] = make_run(place / "run", sequence_len=CONTEXT, n_embd=128, **MODELS[name])
            export_run(self.runs[name], place / "exported")
        return self.runs[name].folder.parent / "exported"

    def answer(self, name, dtype):
        """What our engine generates in float32, or last in bfloat16."""
        if (name, dtype) not in self.answers:
            model = self.runs[name].model
            if dtype == "bfloat16":
                self.answer(name, "float32")
                model.to_compute(torch.bfloat16)
            self.answers[name, dtype] = greedy(model, self.prompts)
        return self.answers[name, dtype]

    def run(self, jobs, plugin, ranks):
        """The results of `jobs` in one process of vLLM."""
        path = self.folder / "jobs.json"
        path.write_text(json.dumps(jobs))
        own = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
        own |= {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(self.folder / "modules"), "VLLM_NO_USAGE_STATS": "1"}
        own |= {} if plugin else {"VLLM_PLUGINS": "none"}  # as if nanogka was not installed
        own |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if ranks == 1 else {}
        child = str(Path(__file__).with_name("vllm_child.py"))
        done = subprocess.run([sys.executable, child, str(path)], env=os.environ | own, capture_output=True, text=True)
        assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
        return json.loads(Path(f"{path}.out").read_text())


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    torch.set_num_threads(1)
    return Lab(tmp_path_factory.mktemp("vllm"))


@pytest.mark.parametrize("group", GROUPS)
def test_vllm_generates_our_tokens(lab, group, capsys):
    jobs = []
    for model, how, options in GROUPS[group]:
        options = {"dtype": "float32", "max_model_len": CONTEXT, "max_num_seqs": 16} | options
        passes = 2 if how == "prefix cache" else 1
        jobs.append({"folder": str(lab.export(model)), "prompts": lab.prompts, "tokens": TOKENS, "passes": passes})
        jobs[-1]["options"] = options
    results = lab.run(jobs, group.startswith("plugin"), jobs[0]["options"].get("tensor_parallel_size", 1))
    failed = []
    for (model, how, _), passes in zip(GROUPS[group], results, strict=True):
        expected = lab.answer(model, "float32")
        same, generated, prompt = compare(passes[0], expected)
        note = ""
        if how == "prefix cache":
            same_again, generated_again, _ = compare(passes[1], expected)
            same, generated = min(same, same_again), max(generated, generated_again)
            cached = sum(result["cached"] for result in passes[1])
            note = f"{cached:,} tokens from the cache"
            if not cached:
                failed.append((model, how, "nothing was cached"))
        if how == "bfloat16":  # rounding alone: judged by our own bfloat16
            ours = compare(lab.answer(model, "bfloat16"), expected)
            note = f"our bfloat16: {ours[0]} of 16, {ours[1]:.1e}, {ours[2]:.1e}"
            if prompt > 2 * ours[2]:
                failed.append((model, how, note))
        elif same < 16 or max(generated, prompt) > 5e-5:
            failed.append((model, how, same))
        with capsys.disabled():
            place = group.split(",")[0]
            print(f"\n| {place} | {model} | {how} | {same} of 16 | {generated:.1e} | {prompt:.1e} | {note} |", end="")
    assert not failed
