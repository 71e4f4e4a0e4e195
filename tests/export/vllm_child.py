"""A process of the tests of vLLM: starts one engine after another and writes what each generated.

python vllm_child.py JOBS.json writes JOBS.json.out: for each job a list of passes, each with one result per prompt.
"""

import gc
import json
import sys
from pathlib import Path


def generate(llm, job: dict, first: bool) -> list[dict]:
    """The greedy continuation of every prompt, with log-probabilities; those of the prompts in the first pass."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in job["prompts"]]
    scored = 0 if first else None  # a request for log-probabilities of its prompt does not read the prefix cache
    options = {"ignore_eos": True, "logprobs": 0, "prompt_logprobs": scored, "detokenize": False}
    params = SamplingParams(temperature=0, max_tokens=job["tokens"], **options)
    results = []
    for output in llm.generate(prompts, params, use_tqdm=False):
        sample, prompt = output.outputs[0], output.prompt_logprobs or []
        generated = [step[token].logprob for step, token in zip(sample.logprobs, sample.token_ids)]
        given = [step[token].logprob for step, token in zip(prompt[1:], output.prompt_token_ids[1:])]
        found = {"tokens": list(sample.token_ids), "generated": generated, "prompt": given}
        results.append(found | {"cached": output.num_cached_tokens or 0})
    return results


def main(path: Path) -> None:
    """Run the jobs."""
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    results = []
    for job in json.loads(path.read_text()):
        llm = LLM(job["folder"], skip_tokenizer_init=True, **job["options"])
        results.append([generate(llm, job, first=number == 0) for number in range(job["passes"])])
        del llm
        gc.collect()
        cleanup_dist_env_and_memory()
        Path(f"{path}.out").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
