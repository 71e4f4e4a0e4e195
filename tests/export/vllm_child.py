"""A process of the tests of vLLM: starts an engine, answers prompts and writes what it generated.

python vllm_child.py JOB.json writes JOB.json.out, a list of one result per prompt and pass.
"""

import json
import sys
from pathlib import Path


def main(path: Path) -> None:
    """Run one job."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    job = json.loads(path.read_text())
    llm = LLM(job["folder"], skip_tokenizer_init=True, **job["options"])
    prompts = [TokensPrompt(prompt_token_ids=prompt) for prompt in job["prompts"]]
    results = []
    for repeat in range(job["passes"]):
        # A request for log-probabilities of its prompt does not read the prefix cache.
        scored = 0 if repeat == 0 else None
        params = SamplingParams(
            temperature=0,
            max_tokens=job["tokens"],
            ignore_eos=True,
            logprobs=0,
            prompt_logprobs=scored,
            detokenize=False,
        )
        for output in llm.generate(prompts, params, use_tqdm=False):
            sample = output.outputs[0]
            found = [step[token].logprob for step, token in zip(sample.logprobs, sample.token_ids)]
            result = {"pass": repeat, "tokens": list(sample.token_ids), "logprobs": found}
            result["cached"] = output.num_cached_tokens or 0
            steps = (output.prompt_logprobs or [])[1:]
            result["prompt"] = [step[token].logprob for step, token in zip(steps, output.prompt_token_ids[1:])]
            results.append(result)
    Path(f"{path}.out").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
