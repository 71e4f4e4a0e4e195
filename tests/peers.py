"""Measure nanogka next to nanochat, transformers' Llama and litgpt's Llama, in processor time.

    python tests/peers.py --nanochat ~/nanochat                    training steps; ~/nanochat is a clone
    python tests/peers.py --kind decode --dtypes float32 --rows 16    one more token of 16 texts
    GLIBC_TUNABLES= python tests/peers.py                          with the allocator's defaults

transformers and litgpt take part if they are installed. Each contestant has its own process, and they take turns, so
that anything else that slows the machine down slows all of them alike. All have the same layers, channels, heads and
tokens, and MLPs of equal FLOPs. Windows, norms, loss and the like are the library's defaults. Models run eagerly. AdamW
is torch's fused one, but nanochat compiles its optimizer.
"""

import argparse
import importlib.util
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor, nn

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Work:
    """What every contestant computes."""

    kind: str = "train"  # or "decode"
    dtype: torch.dtype = torch.float32
    rows: int = 4  # texts
    layers: int = 3
    heads: int = 2
    width: int = 256
    context: int = 512
    vocab_size: int = 4096
    new_tokens: int = 32  # steps of a turn if `kind` is "decode"; they fill the context

    @property
    def gated_width(self) -> int:
        """Hidden channels of a gated MLP that costs the FLOPs of an ordinary one with 4 · width of them."""
        return round(8 / 3 * self.width / 16) * 16

    def ids(self) -> Tensor:
        """Random tokens (rows, context + 1)."""
        return torch.randint(self.vocab_size, (self.rows, self.context + 1), generator=torch.Generator().manual_seed(0))

    def autocast(self) -> torch.autocast:
        """Multiply in `dtype` with parameters of float32."""
        return torch.autocast("cpu", self.dtype, enabled=self.dtype != torch.float32)


@dataclass
class Contestant:
    """A model whose `step` is timed. `restart` prepares a turn."""

    model: nn.Module
    step: Callable[[], object] = lambda: None
    restart: Callable[[], object] = lambda: None
    update: float = 0.0  # seconds that `step` has spent in optimizers


def training(work: Work, model: nn.Module, optimizers: list, loss: Callable[[Tensor, Tensor], Tensor]) -> Contestant:
    """Train on one batch of inputs and targets (rows, context): forward, backward, update."""
    inputs, targets = work.ids()[:, :-1].contiguous(), work.ids()[:, 1:].contiguous()
    contestant = Contestant(model)

    def step() -> None:
        loss(inputs, targets).backward()
        began = time.process_time()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        contestant.update += time.process_time() - began

    contestant.step = step
    return contestant


def decoding(work: Work, model: nn.Module, start: Callable[[], Callable[[Tensor], Tensor]]) -> Contestant:
    """Continue texts greedily. `start` makes an empty cache, and a function that adds ids and returns logits."""
    contestant = Contestant(model.eval())

    @torch.no_grad()
    def restart() -> None:
        predict = start()
        ids = predict(work.ids()[:, : work.context - work.new_tokens])[:, -1:].argmax(-1)

        @torch.no_grad()
        def step() -> Tensor:
            nonlocal ids
            ids = predict(ids)[:, -1:].argmax(-1)
            return ids

        contestant.step = step

    contestant.restart = restart
    return contestant


def nanogka(work: Work, mixer: str, network: str = "february") -> Contestant:
    """Our model and optimizers."""
    from nanogka.model import GPT, GPTConfig, mixer_pattern
    from nanogka.train.budget import plan_budget
    from nanogka.train.optimizer import build_optimizers
    from nanogka.train.snapshots import LearningRates

    shape = {"n_layer": work.layers, "n_head": work.heads, "n_embd": work.width, "sequence_len": work.context}
    config = GPTConfig(**shape, vocab_size=work.vocab_size, mixer_pattern=mixer_pattern(mixer), network=network)
    model = GPT(config, compute_dtype=work.dtype)
    if work.kind == "train":
        budget = plan_budget(config, num_iterations=1000, total_batch_size=work.rows * work.context)
        return training(work, model, build_optimizers(model, LearningRates(), budget, work.dtype), model)

    def start() -> Callable[[Tensor], Tensor]:
        cache = model.new_cache(work.rows)
        return lambda ids: model.unembed(model.hidden(ids, cache)[:, -1:])

    return decoding(work, model.to_compute(work.dtype), start)


def nanochat(work: Work, folder: Path) -> Contestant:
    """Make nanochat's model and optimizer as its training script makes them."""
    os.environ["NANOCHAT_DTYPE"] = str(work.dtype).removeprefix("torch.")
    sys.path.insert(0, str(folder))
    from nanochat.gpt import GPT, GPTConfig

    shape = {"n_layer": work.layers, "n_head": work.heads, "n_kv_head": work.heads, "n_embd": work.width}
    with torch.device("meta"):
        model = GPT(GPTConfig(sequence_len=work.context, vocab_size=work.vocab_size, **shape))
    model.to_empty(device="cpu")
    model.init_weights()
    if work.kind == "train":
        return training(work, model, [model.setup_optimizer()], model)

    def start() -> Callable[[Tensor], Tensor]:
        from nanochat.engine import KVCache

        sizes = work.rows, work.heads, work.context, work.width // work.heads, work.layers
        cache = KVCache(*sizes, torch.device("cpu"), work.dtype)
        return lambda ids: model(ids, kv_cache=cache)

    return decoding(work, model, start)


def transformers(work: Work) -> Contestant:
    """A Llama of transformers, with AdamW."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    shape = {"num_hidden_layers": work.layers, "num_attention_heads": work.heads, "hidden_size": work.width}
    shape |= {"intermediate_size": work.gated_width, "max_position_embeddings": work.context}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=work.vocab_size, **shape))

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with work.autocast():
            return model(input_ids=inputs, labels=targets, shift_labels=targets, use_cache=False).loss

    def start() -> Callable[[Tensor], Tensor]:
        cache = DynamicCache(config=model.config)
        return lambda ids: model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits

    if work.kind == "train":
        return training(work, model, [torch.optim.AdamW(model.parameters(), fused=True)], loss)
    return decoding(work, model.to(work.dtype), start)


def litgpt(work: Work) -> Contestant:
    """A Llama of litgpt, with AdamW; for training only."""
    from litgpt.model import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    shape = {"n_layer": work.layers, "n_head": work.heads, "n_embd": work.width, "block_size": work.context}
    shape |= {"intermediate_size": work.gated_width, "padded_vocab_size": work.vocab_size, "rotary_percentage": 1.0}
    llama = {"norm_class_name": "RMSNorm", "mlp_class_name": "LLaMAMLP", "bias": False, "parallel_residual": False}
    model = GPT(Config(**shape, **llama))

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with work.autocast():
            return chunked_cross_entropy(model(inputs), targets)

    return training(work, model, [torch.optim.AdamW(model.parameters(), fused=True)], loss)


OURS: dict[str, Callable[[Work], Contestant]] = {  # the first is what the others are compared with
    "nanogka, dot_product": partial(nanogka, mixer="dot_product"),
    "nanogka, gaussian": partial(nanogka, mixer="gaussian"),
    "nanogka, successor": partial(nanogka, mixer="successor"),
    "nanogka, dot_product, network july": partial(nanogka, mixer="dot_product", network="july"),
}


def peers(kind: str, nanochat_folder: Path | None) -> dict[str, Callable[[Work], Contestant]]:
    """The other libraries that are here."""
    found: dict[str, Callable[[Work], Contestant]] = {}
    if nanochat_folder:
        found[f"nanochat {commit(nanochat_folder)}"] = partial(nanochat, folder=nanochat_folder)
    if importlib.util.find_spec("transformers"):
        found[f"transformers {version('transformers')}, Llama"] = transformers
    if importlib.util.find_spec("litgpt") and kind == "train":
        found[f"litgpt {version('litgpt')}, Llama"] = litgpt
    return found


def commit(folder: Path) -> str:
    """The short name of the commit in a folder."""
    return subprocess.check_output(["git", "-C", folder, "rev-parse", "--short", "HEAD"], text=True).strip()


def compete(build: Callable[[Work], Contestant], work: Work, steps: int, turns: Connection) -> None:
    """Send the number of parameters, and for each message the CPU time of a step and of its update in ms."""
    sys.stdout = sys.stderr  # what a library prints
    torch.set_num_threads(1)
    contestant = build(work)
    for _ in range(3):  # allocate, and compile where something is compiled
        contestant.restart()
        contestant.step()
    turns.send(sum(p.numel() for p in contestant.model.parameters()))
    while turns.recv():
        contestant.restart()
        contestant.update, began = 0.0, time.process_time()
        for _ in range(steps):
            contestant.step()
        turns.send([seconds / steps * 1e3 for seconds in (time.process_time() - began, contestant.update)])


def take_turns(contestants: dict[str, Callable[[Work], Contestant]], work: Work, rounds: int, steps: int) -> str:
    """Let the contestants take turns in processes; returns a table."""
    context, ends = multiprocessing.get_context("spawn"), {}  # a spawned process reads GLIBC_TUNABLES when it starts
    parameters, times = {}, {name: [] for name in contestants}
    for name, build in contestants.items():
        ends[name], other = context.Pipe()
        context.Process(target=compete, args=(build, work, steps, other), daemon=True).start()
        other.close()
        try:
            parameters[name] = ends[name].recv()
        except EOFError:
            sys.exit(f"{name}: its process failed")
    for _ in range(rounds):
        for name, end in ends.items():
            end.send(True)
            times[name].append(end.recv())
    for end in ends.values():
        end.send(False)
    return table(parameters, times)


def table(parameters: dict[str, int], times: dict[str, list[tuple[float, float]]]) -> str:
    """Medians over the rounds. A ratio is that of the times of one round."""
    first = next(iter(times.values()))
    rows = ["| | parameters | CPU ms per step | of these the update | ratio | ratios of the rounds |"]
    rows.append("|---" + 5 * "|---:" + "|")
    for name, own in times.items():
        step, update = (statistics.median(column) for column in zip(*own))
        ratios = [mine[0] / reference[0] for mine, reference in zip(own, first, strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        costs = f"{step:.4g} | {f'{update:.3g}' if update else '–'} | {statistics.median(ratios):.2f} | {spread}"
        rows.append(f"| {name} | {parameters[name]:,} | {costs} |")
    return "\n".join(rows)


def main() -> None:
    """Print a table for each dtype."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--kind", choices=("train", "decode"), default="train", help="what a step does (default: train)"
    )
    parser.add_argument("--nanochat", type=Path, help="folder of a clone of nanochat")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="separated by commas (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=4, help="sequences of 512 tokens, or texts (default: 4)")
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contestant (default: 9)")
    options = parser.parse_args()
    tunables = re.search(r"GLIBC_TUNABLES:-([^}]+)", (ROOT / "scripts/steps.sh").read_text(encoding="utf-8"))
    assert tunables, "scripts/steps.sh sets the allocator"
    os.environ.setdefault("GLIBC_TUNABLES", tunables[1])
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

    from nanogka.common.runtime import describe_hardware

    machine = f"{describe_hardware(torch.device('cpu')).name.split(',')[0]}, one thread, torch {version('torch')}"
    print(f"nanogka {commit(ROOT)}, {machine}, GLIBC_TUNABLES={os.environ['GLIBC_TUNABLES'] or '(none)'}", flush=True)
    train = options.kind == "train"
    work = Work(options.kind, rows=options.rows, context=512 if train else 256)
    for dtype in options.dtypes.split(","):
        contestants = OURS | peers(options.kind, options.nanochat)
        result = take_turns(contestants, replace(work, dtype=getattr(torch, dtype)), options.rounds, 4 if train else 31)
        print(f"\n{options.kind}, {dtype}, {work.rows} × {work.context} tokens\n\n{result}", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
