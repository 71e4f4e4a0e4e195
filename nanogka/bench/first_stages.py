"""The stages of the first hour on a GPU node: each yields its results and raises if something is wrong.

Shapes: B sequences, T positions, H heads, D features per head.
"""

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from nanogka import backends
from nanogka.bench import first_machine
from nanogka.bench.attention import CONTESTANTS, FLASH_VERSIONS, Attention, Shape, attention_inputs, contestant, measure
from nanogka.bench.common import seconds
from nanogka.bench.train import Settings as StepSettings
from nanogka.bench.train import compare_steps
from nanogka.common.distributed import Ranks
from nanogka.common.errors import in_one_line
from nanogka.common.files import read_json, read_yaml
from nanogka.common.processes import family, visible_gpus
from nanogka.common.runtime import Hardware
from nanogka.data.hub_corpora import HUB_CORPORA, WORKERS
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.model.loss import capped_cross_entropy, plain_cross_entropy
from nanogka.train.budget import plan_budget
from nanogka.train.estimate import step_time

DOWNLOAD_SECONDS = 8
BUCKET = 2**27  # bytes of a message, as in nanogka.train.sharded_optimizer
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}  # relative error against float64
COMPILED_TOLERANCE = {torch.bfloat16: 0.1, torch.float32: 1e-3}  # relative difference from eager gradients
RESUMED_TOLERANCE = 1e-2  # relative difference of losses after a resume; atomic sums on a GPU are not reproducible
STEPS = 30  # of the short training
REPEATED = 5  # of them after the crash

Results = Iterator[dict]


@dataclass(frozen=True)
class Place:
    """Machine, sizes and the folder for the results."""

    smoke: bool
    out: Path
    gpus: int  # in smoke mode: processes
    depth: int = 20
    mixers: tuple[str, ...] = ("gaussian", "dot_product", "successor")  # the first one is trained
    hardware: Hardware = Hardware("")  # by the driver's name, because asking torch would start CUDA

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.smoke else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.smoke else torch.bfloat16

    def config(self, mixer: str) -> GPTConfig:
        """The model whose steps are timed and that is trained for a while: that of the real run, or a tiny one."""
        depth, length, vocabulary = (1, 32, 704) if self.smoke else (self.depth, 2048, 32768)
        return GPTConfig.from_depth(depth, mixer, sequence_len=length, vocab_size=vocabulary)

    def start(self, module: str, *words: str, ranks: int | None = None) -> subprocess.Popen:
        """Start a module in its own process, or in `ranks` processes."""
        launcher = ["-m", "scripts.launch", f"--nproc_per_node={ranks}"] if ranks else []
        command = [sys.executable, *launcher, "-m", module, *words]
        return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})


# ---- machine and network ----


def machine(place: Place) -> Results:
    """The machine, and what is wrong with it."""
    return first_machine.machine(place.smoke, place.device, place.gpus)


def download(place: Place) -> Results:
    """The download rate of FineWeb-Edu's shards, several at a time."""
    url, end = download_address(place), time.monotonic() + DOWNLOAD_SECONDS

    def fetch(_: int) -> int:
        received = 0
        with urllib.request.urlopen(url, timeout=30) as response:
            while time.monotonic() < end and (chunk := response.read(2**20)):
                received += len(chunk)
        return received

    began = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        received = sum(pool.map(fetch, range(WORKERS)))
    # A rate over all connections, as the real download opens several: one alone rarely fills the link.
    yield {"download_bytes_per_second": received / (time.monotonic() - began)}
    if not received:
        raise RuntimeError(f"{url} is empty")


def download_address(place: Place) -> str:
    """A shard of FineWeb-Edu; in smoke mode a file on this machine."""
    if place.smoke:
        (place.out / "shard").write_bytes(bytes(2**20))
        return (place.out / "shard").as_uri()
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return f"{hub}/datasets/{HUB_CORPORA['fineweb-edu'].repo}/resolve/main/shard_00000.parquet"


# ---- kernels ----


def kernels(place: Place) -> Results:
    """The kernels that training chooses. None may fall back to plain torch."""
    chosen = backends.select_kernels(place.device, place.dtype)
    yield chosen
    wrong = [f"{name}: {choice}" for name, choice in chosen.items() if choice.startswith("torch (")]
    if wrong or not chosen:
        raise RuntimeError(f"not chosen: {', '.join(wrong) or 'any kernel'}")


def contestants(place: Place) -> list[str]:
    """The model's choice, and every FlashAttention that torch could use."""
    return ["gaussian", *(FLASH_VERSIONS if place.device.type == "cuda" else ())]


def correct(place: Place) -> Results:
    """Values and gradients of attention and loss against float64. Implementations not in use only leave a line."""
    wrong = []
    for D, T, window in [(16, 40, 7)] if place.smoke else [(128, 239, None), (128, 512, 100)]:
        inputs = attention_inputs(Shape(2, T, 2, D, window, place.dtype), place.device)
        for name in contestants(place):
            about, errors = {"contestant": name, "T": T, "window": window}, [math.inf]
            try:
                candidate = normed(contestant(name, place.device, place.dtype), window)
                errors = relative_errors(candidate, normed(CONTESTANTS["reference"], window), inputs)
                yield about | {"errors": errors}
            except Exception as error:  # kernels, compilers and packages fail in many types
                yield about | {"reason": in_one_line(error)}
            if name == "gaussian" and max(errors) > TOLERANCE[place.dtype]:
                wrong.append(f"attention with window {window}")
    V = 700 if place.smoke else 32768
    targets = torch.randint(-1, V, (99,), device=place.device)
    losses = [lambda h, w, f=f: f(h, w, targets, cap=15.0) for f in (capped_cross_entropy, plain_cross_entropy)]
    hidden, weight = torch.randn(99, 64, device=place.device).to(place.dtype), torch.randn(V, 64, device=place.device)
    errors = relative_errors(*losses, [hidden, weight])
    yield {"vocabulary": V, "errors": errors}
    if max(errors) > TOLERANCE[place.dtype]:
        wrong.append("the loss")
    eager, compiled = (matrix_gradients(place, compiled) for compiled in (False, True))
    errors = [((b - a).norm() / a.norm()).item() for a, b in zip(eager, compiled, strict=True)]
    yield {"compiled_gradients_errors": errors}
    # A compiler that loses a gradient says nothing, and training then learns a part of the model only.
    if not all(error <= COMPILED_TOLERANCE[place.dtype] for error in errors):  # nan is wrong, too
        wrong.append("the compiled model's gradients (their reference is eager mode)")
    if wrong:
        raise RuntimeError(f"disagrees with float64: {', '.join(wrong)}")


def matrix_gradients(place: Place, compiled: bool) -> list[Tensor]:
    """Gradients of the matrices of a small model, whose parameters are all random: zeros would hide errors."""
    config = GPTConfig.from_depth(2, place.mixers[0], sequence_len=64, vocab_size=1024)
    model, generator = GPT(config, compute_dtype=place.dtype), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))
    ids = torch.randint(0, config.vocab_size, (8, 65), generator=generator).to(place.device)
    model.to(place.device)
    backend = "aot_eager" if place.smoke else "inductor"  # a rehearsal need not wait for the C++ compiler
    loss_fn = torch.compile(model, dynamic=False, backend=backend) if compiled else model
    loss_fn(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).backward()
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters() if p.ndim == 2]


def relative_errors(function: Callable, reference: Callable, inputs: list[Tensor]) -> list[float]:
    """Errors of the output and of all gradients against `reference` on the inputs in float64."""
    results = []
    for f, leaves in ((function, inputs), (reference, [t.double() for t in inputs])):
        leaves = [t.detach().requires_grad_() for t in leaves]
        y = f(*leaves)
        results.append([y.detach(), *torch.autograd.grad(y.float().square().sum(), leaves)])
    return [((a.double() - b).norm() / b.norm()).item() for a, b in zip(*results)]


def normed(function: Attention, window: int | None) -> Callable:
    """Attention of normalized features, as a model calls it.

    Kernels for keys of equal norm leave a part of dz out that the norm's backward removes.
    """
    return lambda z, v, sigma: function(F.rms_norm(z, z.shape[-1:]), v, sigma, window)


def attention(place: Place) -> Results:
    """FLOP/s of every way to compute attention, with and without a window."""
    for window in (16,) if place.smoke else (None, 1024):
        size = (1, 32, 1, 16) if place.smoke else (32, 2048, 10, 128)
        shape = Shape(*size, window, place.dtype)
        for name in contestants(place):
            measured = measure(name, shape, place.device, 1 if place.smoke else 3)
            yield {"window": window} | measured
            if name == "gaussian" and measured["reason"]:
                raise RuntimeError(measured["reason"])


# ---- training ----


def steps(place: Place) -> Results:
    """Training steps of each mixer on one GPU. With a GPU for each they run at the same time.

    Only the mixer that is trained must fit.
    """
    mixers = place.mixers[:1] if place.smoke else place.mixers
    workers = len(mixers) if place.gpus >= len(mixers) else 1
    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        for result in pool.map(partial(time_step, place, workers > 1), range(len(mixers)), mixers):
            yield result
            if "reason" in result and result["mixer"] == mixers[0]:
                raise RuntimeError(f"{mixers[0]}: {result['reason']}")


def time_step(place: Place, own_gpu: bool, index: int, mixer: str) -> dict:
    """The costs of a step: a real batch of micro-batches and one update. Fewer rows at a time if memory is short."""
    if own_gpu and not place.smoke:  # CUDA has not started in this process yet
        os.environ["CUDA_VISIBLE_DEVICES"] = visible_gpus(place.gpus)[index]
    config = place.config(mixer)
    rows = 2 if place.smoke else plan_budget(config).total_batch_size // config.sequence_len
    for batch in (1,) if place.smoke else (32, 16, 8, 4, 2, 1):
        sizes = {"depth": config.n_layer, "sequence_len": config.sequence_len, "vocab_size": config.vocab_size}
        sizes["batch"] = batch
        options = {"micro_batches": rows // batch, "repeats": 2, "compile": not place.smoke}
        try:
            (costs,) = compare_steps(StepSettings(mixers=mixer, **sizes, **options), place.device, place.dtype)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        return {"batch": batch} | costs
    return {"mixer": mixer, "reason": "no batch fits"}


def messages(place: Place) -> Results:
    """Bytes per second of a gradient bucket, summed on one rank and sent to all, by NCCL (in smoke mode by gloo).

    With them the share of a step that messages take: a few percent over NVLink, half of it on eight cards without.
    """
    if place.gpus == 1:
        yield {"messages": "one GPU sends none"}
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ProcessPoolExecutor(place.gpus, get_context("fork")) as pool:
        rates, *_ = pool.map(partial(send_buckets, place, port), range(place.gpus))
    yield rates
    config = place.config(place.mixers[0])
    if step := step_time(config, place.hardware, plan_budget(config).total_batch_size, place.gpus):
        seconds = 8 * model_costs(config).total_parameters / min(rates.values())
        yield {"messages_share_of_step": seconds / (step.total - step.messages + seconds)}


def send_buckets(place: Place, port: int, rank: int) -> dict[str, float]:
    """The messages of a training step: gradients are summed on the rank that owns them, new weights sent to all."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(place.gpus)}
    ranks, size, rates = Ranks.from_environment(), 2**20 if place.smoke else BUCKET, {}
    device = ranks.device(place.device)
    with ranks.process_group(device):
        bucket = torch.ones(size // 4, device=device)
        for send in (dist.reduce, dist.broadcast):
            send(bucket, 0)  # the first message opens the connections
            rates[f"{send.__name__}_bytes_per_second"] = size / seconds(lambda s=send: s(bucket, 0), device, calls=10)
        bucket.fill_(1)
        dist.all_reduce(bucket)
        if not bool((bucket == ranks.world_size).all()):
            raise RuntimeError("the sum over ranks is wrong")
    return rates


def train(place: Place) -> Results:
    """The real command for `STEPS` steps, with one rank killed on the way: it must resume with the same losses."""
    os.environ["NANOGKA_BASE_DIR"] = str(place.out / "base")
    last_step, save_every, crash = (60, 20, 30) if place.smoke else (STEPS, 2 * REPEATED, 3 * REPEATED)
    sizes = "--depth 1 --sequence-len 32 --total-batch-size 128 --eval-tokens 128 --compile off"
    sizes = sizes if place.smoke else f"--depth {place.depth} --eval-tokens 1048576"
    flags = f"-- {sizes} --attention {place.mixers[0]} --data embedded --tokenizer first --run first".split()
    flags += f"--device {place.device.type}".split()
    flags += f"--num-iterations {last_step} --save-every {save_every} --eval-every 0 --resume auto".split()
    config = place.config(place.mixers[0])
    try:
        words = ["--data", "embedded", "--vocab-size", str(config.vocab_size), "--name", "first"]
        if place.start("scripts.tok_train", *words).wait():
            raise RuntimeError("no tokenizer was trained (see log.txt)")
        fill_vocabulary(place.out / "base" / "tokenizers" / "first", config.vocab_size)
        began, process = time.monotonic(), place.start("scripts.base_train", *flags, ranks=place.gpus)
        # Crash between two checkpoints: the steps since the last one are computed again, and their losses compared.
        while process.poll() is None and len(read_steps(place)) < crash:
            time.sleep(0.01 if place.smoke else 0.2)
        before = read_steps(place)
        if len(before) < crash:
            raise RuntimeError(f"training ended with exit code {process.wait()} after {len(before)} steps")
        trained = read_yaml(place.out / "base" / "runs" / "first" / "config.yaml")["model"]
        if GPTConfig.from_dict(trained) != config:
            raise RuntimeError(f"another model was trained ({trained}) than the one of the verdict ({config})")
        # From the command to its first step: imports, compilation, the first batch.
        yield {"start_seconds": time.monotonic() - began - sum(line["seconds"] for line in before.values())}
        yield {"crashed": crash_rank(process)}
        if place.start("scripts.base_train", *flags, ranks=place.gpus).wait():
            raise RuntimeError("training did not resume after the crash")
        after = read_steps(place)
        last = list(after.values())[-(last_step // 3) :]
        tokens = last[-1]["tokens"] / last[-1]["step"] * len(last)
        yield {"run_tokens_per_second": tokens / sum(line["seconds"] for line in last)}
        yield {"first_loss": before[1]["loss"], "last_loss": after[last_step]["loss"]}
        difference = max(abs(after[i]["loss"] / before[i]["loss"] - 1) for i in before.keys() & after.keys())
        yield {"losses_differ_by": difference}
        if difference > RESUMED_TOLERANCE or not after[last_step]["loss"] < before[1]["loss"]:
            raise RuntimeError(f"the losses are wrong: they differ by {difference:.2g} after the crash, or do not fall")
    finally:
        shutil.rmtree(place.out / "base", ignore_errors=True)


def fill_vocabulary(folder: Path, size: int) -> None:
    """Add reserved special tokens to a tokenizer until it has `size` ids: the embedded text gives fewer merges."""
    content = read_json(folder / "tokenizer.json")
    special = content["added_tokens"]
    first = len(content["model"]["vocab"]) + len(special)
    special += [special[0] | {"id": i, "content": f"<|reserved_{i}|>"} for i in range(first, size)]
    (folder / "meta.json").unlink()  # it has the fingerprint of the smaller one
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")


def crash_rank(process: subprocess.Popen) -> bool:
    """Kill one rank and wait until the launcher has ended the others; False if it was too late."""
    workers = family(process.pid)[1:]
    if workers:
        with suppress(ProcessLookupError):
            os.kill(workers[-1], signal.SIGKILL)
    return process.wait() != 0 and bool(workers)


def read_steps(place: Place) -> dict[int, dict]:
    """{step: its line of metrics.jsonl} of the steps that the run has finished."""
    path = place.out / "base" / "runs" / "first" / "metrics.jsonl"
    text = path.read_text() if path.is_file() else ""
    lines = map(json.loads, (line for line in text.splitlines(keepends=True) if line.endswith("\n")))
    return {line["step"]: line for line in lines if line["kind"] == "train"}


def limit(name: str, place: Place) -> float:
    """Seconds after which a stage is killed: for start and compilation, and for training steps of the computed time."""
    seconds, mixers = STAGES[name][1], place.mixers
    gpus, steps = {"steps": (1, 5 * len(mixers)), "train": (place.gpus, STEPS + REPEATED)}.get(name, (1, 0))
    if place.smoke or not steps:
        return seconds
    configs = [place.config(mixer) for mixer in (mixers if name == "steps" else mixers[:1])]
    times = [step_time(c, place.hardware, plan_budget(c).total_batch_size, gpus) for c in configs]
    if None in times:
        return UNKNOWN_LIMIT
    return seconds + 1.5 * steps * max(time.total for time in times)


UNKNOWN_LIMIT = 7200  # seconds of a stage whose training steps have no computed time
# Stages in their order, and the seconds that each needs for start, compilation and everything but training steps.
STAGES: dict[str, tuple[Callable[[Place], Results], int]] = {
    "machine": (machine, 60),
    "download": (download, 60),
    "kernels": (kernels, 120),
    "correct": (correct, 120),
    "attention": (attention, 120),
    "messages": (messages, 120),
    "steps": (steps, 600),
    "train": (train, 600),
}
