"""The stages of the first hour on a GPU node. Each one puts its results into a file and raises if something is wrong.

Shapes: B sequences, T positions, H heads, D features per head.
"""

import http.server
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka import backends
from nanogka.bench.attention import (
    CONTESTANTS,
    FLASH_VERSIONS,
    Attention,
    Shape,
    attention_inputs,
    contestant,
    measure,
)
from nanogka.bench.common import peak_memory, seconds
from nanogka.bench.train import Settings as StepSettings
from nanogka.bench.train import TrainingStep
from nanogka.common.errors import in_one_line
from nanogka.common.files import base_dir
from nanogka.common.runtime import describe_hardware
from nanogka.data.hub_corpora import HUB_CORPORA, WORKERS
from nanogka.model import GPTConfig, model_costs
from nanogka.model.loss import capped_cross_entropy, plain_cross_entropy
from nanogka.train.budget import plan_budget

# Seconds of the 15 minutes that are kept for each stage, most of them for compiling.
STAGES = {"machine": 30, "download": 30, "kernels": 60, "correct": 60, "attention": 60, "messages": 60}
STAGES |= {"step gaussian": 130, "step dot_product": 130, "step successor": 130, "train": 340}

FREE_DISK = 60e9  # bytes: text 10 GB, four checkpoints of the baseline 37 GB, its chat model and the export
DOWNLOAD_SECONDS = 8
BUCKET = 2**27  # bytes of a message, as in nanogka.train.sharded_optimizer
SLOW_LINK = 50e9  # bytes/s; NVLink brings more than 250e9, PCIe less than this
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}  # relative error against float64
RESUMED_TOLERANCE = 1e-2  # relative difference of losses after a resume; atomic sums on a GPU are not reproducible


@dataclass(frozen=True)
class Place:
    """Machine, sizes and the folder for the results."""

    smoke: bool
    out: Path
    gpus: int  # in smoke mode: processes

    @property
    def results(self) -> Path:
        """The results, one JSON document per line."""
        return self.out / "results.jsonl"

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.smoke else "cuda")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.smoke else torch.bfloat16

    def put(self, stage: str, **values: object) -> None:
        """Append one line of results."""
        with open(self.results, "a") as file:
            file.write(json.dumps({"stage": stage} | values) + "\n")

    def randn(self, *shape: int) -> Tensor:
        """Normal random numbers of this shape."""
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def seconds(self, function: Callable[[], object]) -> float:
        """Seconds per call after a first call that warms up."""
        if not self.smoke:
            function()
        return seconds(function, self.device, 1 if self.smoke else 10)


def run_stage(name: str, place: Place) -> None:
    """Run one stage in this process. Raises if its subject is wrong."""
    torch.set_num_threads(1 if place.smoke else torch.get_num_threads())
    if place.smoke:
        backends.GPU = "cpu"  # the Triton kernels run in the interpreter
    kind, _, mixer = name.partition(" ")
    stage = {"machine": machine, "download": download, "kernels": kernels, "correct": correct}
    stage |= {"attention": attention, "messages": messages, "step": step, "train": train}
    stage[kind](place, lambda **values: place.put(name, **values), *([mixer] if mixer else []))


def cut_results(line: dict) -> str:
    """A line of results as text for people."""

    def short(value: object) -> str:
        if isinstance(value, list):
            return " ".join(map(short, value))
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {short(value)}" for name, value in line.items() if name != "stage")


# ---- machine and network ----


def machine(place: Place, put: Callable) -> None:
    """Versions, driver, links between GPUs, cores, free disk, and the bandwidth and FLOP/s that the device reaches."""
    import triton

    put(torch=torch.__version__, triton=triton.__version__, cuda=torch.version.cuda)
    if shutil.which("nvidia-smi"):
        query = "--query-gpu=name,driver_version,power.limit,clocks.max.sm"
        put(nvidia=ask_driver(query, "--format=csv,noheader").splitlines())
        topology = ask_driver("topo", "-m")
        print(topology, flush=True)
        put(nvlink=bool(re.search(r"\bNV\d", topology)))
    hardware, cores = describe_hardware(place.device).name, os.cpu_count()
    put(hardware=hardware, gpus=place.gpus, cores_per_gpu=cores / place.gpus)
    base_dir().mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(base_dir()).free
    put(free_disk_bytes=free)
    measure_device(place, put)
    needed = FREE_DISK / 100 if place.smoke else FREE_DISK
    if free < needed:
        raise RuntimeError(f"{base_dir()} has {free / 1e9:.0f} GB free, a run needs {needed / 1e9:.0f} GB")
    if cores < place.gpus:
        raise RuntimeError(f"{cores} CPU cores are too few for {place.gpus} GPUs: each process needs one")


def ask_driver(*words: str) -> str:
    """What `nvidia-smi` prints."""
    return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=30).stdout


def measure_device(place: Place, put: Callable) -> None:
    """Bandwidth of a copy, and FLOP/s of the matrix products of depth 20."""
    large = place.randn(2**12 if place.smoke else 2**30)
    target = torch.empty_like(large)
    moved = 2 * large.numel() * large.element_size()
    put(copy_bytes_per_second=moved / place.seconds(lambda: target.copy_(large)))
    for m, n, k in [(8192, 8192, 8192), (65536, 5120, 1280), (65536, 1280, 1280), (4096, 32768, 1280)]:
        m, n, k = (size // 128 if place.smoke else size for size in (m, n, k))
        a, b = place.randn(m, k), place.randn(k, n)
        put(product=f"{m} x {k} x {n}", flops=2 * m * n * k / place.seconds(lambda a=a, b=b: a @ b))


def download(place: Place, put: Callable) -> None:
    """The download rate of FineWeb-Edu's shards, several at a time; in smoke mode from a server on this machine."""
    hub = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{hub}/datasets/{HUB_CORPORA['fineweb-edu'].repo}/resolve/main/shard_00000.parquet"
    server = None
    if place.smoke:
        server, url = serve_bytes(2**24)
    end = time.monotonic() + DOWNLOAD_SECONDS

    def fetch(_: int) -> int:
        received = 0
        with urllib.request.urlopen(url, timeout=30) as response:
            while time.monotonic() < end and (chunk := response.read(2**20)):
                received += len(chunk)
        return received

    began = time.monotonic()
    with ThreadPoolExecutor(WORKERS) as pool:
        received = sum(pool.map(fetch, range(WORKERS)))
    put(download_bytes_per_second=received / (time.monotonic() - began))
    if server:
        server.shutdown()
    if not received:
        raise RuntimeError(f"{url} is empty")


def serve_bytes(size: int) -> tuple[http.server.HTTPServer, str]:
    """A server on this machine whose every answer has `size` bytes, and its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            self.wfile.write(bytes(size))

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_port}"


# ---- kernels ----


def kernels(place: Place, put: Callable) -> None:
    """The kernels that training chooses. None may fall back to plain torch."""
    chosen = backends.select_kernels(place.device, place.dtype)
    put(**chosen)
    wrong = [f"{name}: {choice}" for name, choice in chosen.items() if "(" in choice]
    if wrong or not chosen:
        raise RuntimeError(f"not chosen: {', '.join(wrong) or 'any kernel'}")


def contestants(place: Place) -> list[str]:
    """The model's choice, our kernels, and every FlashAttention that torch could use."""
    return ["gaussian", "triton", *(FLASH_VERSIONS if place.device.type == "cuda" else ())]


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


def correct(place: Place, put: Callable) -> None:
    """Values and gradients of attention and loss against float64. Implementations not in use only leave a line."""
    wrong = []
    for D, T, window in [(16, 40, None), (16, 40, 7)] if place.smoke else [(128, 239, None), (128, 512, 100)]:
        inputs = attention_inputs(Shape(2, T, 2, D, window, place.dtype), place.device)
        for name in contestants(place):
            about = {"contestant": name, "T": T, "window": window}
            try:
                candidate = normed(contestant(name, place.device, place.dtype), window)
                errors = relative_errors(candidate, normed(CONTESTANTS["reference"], window), inputs)
                put(**about, errors=errors)
            except Exception as error:  # kernels, compilers and packages fail in many types
                errors = [math.inf]
                put(**about, reason=in_one_line(error))
            if name == "gaussian" and max(errors) > TOLERANCE[place.dtype]:
                wrong.append(f"attention with window {window}")
    V = 700 if place.smoke else 32768
    targets = torch.randint(-1, V, (99,), device=place.device)
    losses = [lambda h, w, f=f: f(h, w, targets, cap=15.0) for f in (capped_cross_entropy, plain_cross_entropy)]
    errors = relative_errors(*losses, [place.randn(99, 64), torch.randn(V, 64, device=place.device)])
    put(vocabulary=V, errors=errors)
    if max(errors) > TOLERANCE[place.dtype]:
        wrong.append("the loss")
    if wrong:
        raise RuntimeError(f"disagrees with float64: {', '.join(wrong)}")


def attention(place: Place, put: Callable) -> None:
    """FLOP/s of every way to compute attention, with and without a window."""
    for window in (None, 16 if place.smoke else 1024):
        size = (1, 32, 1, 16) if place.smoke else (32, 2048, 10, 128)
        shape = Shape(*size, window, place.dtype)
        for name in contestants(place):
            measured = measure(name, shape, place.device, 1 if place.smoke else 3)
            put(window=window, **measured)
            if name == "gaussian" and measured["reason"]:
                raise RuntimeError(measured["reason"])


# ---- training ----


def step(place: Place, put: Callable, mixer: str) -> None:
    """A training step of depth 20: a real batch of micro-batches, one update. Fewer rows if memory is short."""
    for batch in (1,) if place.smoke else (32, 16, 8):
        depth, length, vocabulary = (1, 32, 700) if place.smoke else (20, 2048, 32768)
        config = GPTConfig.from_depth(depth, mixer, sequence_len=length, vocab_size=vocabulary)
        rows = plan_budget(config).total_batch_size // length
        micro_batches = 2 if place.smoke else max(1, rows // (batch * place.gpus))
        sizes = {"depth": depth, "sequence_len": length, "batch": batch, "vocab_size": vocabulary}
        settings = StepSettings(**sizes, micro_batches=micro_batches, compile=not place.smoke)
        try:
            backends.select_kernels(place.device, place.dtype)
            training = TrainingStep(mixer, settings, place.device, place.dtype)
            first = seconds(training.accumulate, place.device)
            micro, update = place.seconds(training.accumulate), seconds(training.update, place.device)
            peak = training.held_bytes() + peak_memory(training.accumulate, place.device)
        except torch.OutOfMemoryError as error:
            put(mixer=mixer, batch=batch, error=in_one_line(error))
            training = None
            torch.cuda.empty_cache()
            continue
        # The ranks share the update, so a step on all of them takes this long, without its messages.
        whole = micro_batches * micro + update / place.gpus
        speed, peak_flops = training.tokens / whole, describe_hardware(place.device).peak_flops
        mfu = speed * model_costs(training.config).flops_per_token / peak_flops if peak_flops else None
        times = {"compile_seconds": first, "micro_batch_seconds": micro, "update_seconds": update}
        put(batch=batch, micro_batches=micro_batches, **times, tokens_per_second=speed, mfu=mfu, peak_bytes=peak)
        return
    raise RuntimeError("no batch fits")


def launch(place: Place, module: str, *words: str, **options: object) -> subprocess.Popen:
    """Start a module on all GPUs with torchrun."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={place.gpus}"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*torchrun, "-m", module, *words], env=environment, text=True, **options)


def messages(place: Place, put: Callable) -> None:
    """Bytes per second of a gradient bucket, summed on one rank and sent to all, by NCCL (in smoke mode by gloo)."""
    if place.gpus == 1:
        put(messages="one GPU sends none")
        return
    size = 2**20 if place.smoke else BUCKET
    words = ("nanogka.bench.messages", place.device.type, str(size))
    process = launch(place, *words, stdout=subprocess.PIPE)
    printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the ranks could not send messages (exit code {process.returncode}, see log.txt)")
    rates = json.loads(printed.splitlines()[-1])
    put(**rates)
    if not place.smoke and min(rates.values()) < SLOW_LINK:
        raise RuntimeError(f"messages are slow ({min(rates.values()) / 1e9:.0f} GB/s): there is no NVLink between GPUs")


def train(place: Place, put: Callable) -> None:
    """The real command for 30 steps, with one rank killed on the way: it must resume with the same losses."""
    os.environ["NANOGKA_BASE_DIR"] = str(place.out / "base")
    steps, save_every, crash = (60, 20, 30) if place.smoke else (30, 10, 15)
    sizes = "--depth 1 --sequence-len 32 --total-batch-size 128 --eval-tokens 128 --compile off"
    sizes = sizes if place.smoke else "--depth 20 --eval-tokens 1048576"
    flags = f"{sizes} --data embedded --tokenizer first --run first --device {place.device.type}".split()
    flags += f"--num-iterations {steps} --save-every {save_every} --eval-every 0 --resume auto".split()
    vocabulary = "300" if place.smoke else "32768"
    try:
        words = ["--data", "embedded", "--vocab-size", vocabulary, "--name", "first"]
        subprocess.run([sys.executable, "-m", "scripts.tok_train", *words], check=True)
        began, process = time.monotonic(), launch(place, "scripts.base_train", "--", *flags)
        while process.poll() is None and len(read_steps(place)) < crash:
            time.sleep(0.01 if place.smoke else 0.2)
        before = read_steps(place)
        if len(before) < crash:
            raise RuntimeError(f"training ended with exit code {process.wait()} after {len(before)} steps")
        # From the command to its first step: imports, compilation, the first batch.
        put(start_seconds=time.monotonic() - began - sum(line["seconds"] for line in before.values()))
        put(crashed=crash_rank(process))
        if launch(place, "scripts.base_train", "--", *flags).wait():
            raise RuntimeError("training did not resume after the crash")
        after = read_steps(place)
        last = list(after.values())[-(steps // 3) :]
        tokens = last[-1]["tokens"] / last[-1]["step"] * len(last)
        put(run_tokens_per_second=tokens / sum(line["seconds"] for line in last))
        put(first_loss=before[1]["loss"], last_loss=after[steps]["loss"])
        difference = max(abs(after[i]["loss"] / before[i]["loss"] - 1) for i in before.keys() & after.keys())
        put(losses_differ_by=difference)
        if difference > RESUMED_TOLERANCE or not after[steps]["loss"] < before[1]["loss"]:
            raise RuntimeError(f"the losses are wrong: they differ by {difference:.2g} after the crash, or do not fall")
    finally:
        shutil.rmtree(place.out / "base", ignore_errors=True)


def crash_rank(process: subprocess.Popen) -> bool:
    """Kill one rank of a torchrun process and wait until torchrun has ended the others; False if it was too late."""
    workers = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    if workers:
        os.kill(int(workers[-1]), signal.SIGKILL)
    return process.wait() != 0 and bool(workers)


def read_steps(place: Place) -> dict[int, dict]:
    """{step: its line of metrics.jsonl} of the steps that the run has finished."""
    path = place.out / "base" / "runs" / "first" / "metrics.jsonl"
    text = path.read_text() if path.is_file() else ""
    lines = map(json.loads, (line for line in text.splitlines(keepends=True) if line.endswith("\n")))
    return {line["step"]: line for line in lines if line["kind"] == "train"}
