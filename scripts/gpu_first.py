"""The first command on a GPU: what is there, which kernels run, whether they are right, and how fast everything is.

    python -m scripts.gpu_first --out first
    python -m scripts.gpu_first --out first --smoke       # all of it on a CPU, tiny, in Triton's interpreter

Stages run one after the other in processes of their own, what matters most first; each may use the time that those
after it do not need. Results are JSON lines in OUT/results.jsonl, with their table in OUT/results.md; OUT/log.txt has
what the stages print. Exits 1 if a stage failed: a kernel of ours that is not chosen, or wrong, fails its stage.
"""

import json
import math
import multiprocessing
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # before the stages fork: its import takes seconds, and they would each pay them
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from nanogka import dispatch
from nanogka.attention import gaussian_attention
from nanogka.bench.attention import Shape
from nanogka.bench.common import peak_memory, seconds
from nanogka.bench.train import Settings as StepSettings
from nanogka.bench.train import TrainingStep
from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors, in_one_line
from nanogka.common.files import expand_path
from nanogka.common.formatting import markdown_table
from nanogka.common.runtime import describe_hardware
from nanogka.model import count
from nanogka.model.loss import capped_cross_entropy, plain_cross_entropy
from scripts import base_train, tok_train

# Seconds of ten minutes that are kept for a stage, most of which is compiling; what matters most comes first.
STAGES = {"machine": 30, "kernels": 70, "step gaussian": 100, "correct": 100, "step dot_product": 90}
STAGES |= {"attention": 80, "train": 70, "step successor": 60}
TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-4}  # relative errors against float64; ∂σ is a small difference


@dataclass(frozen=True)
class Settings:
    """Settings."""

    out: str = flag("gpu_first", "folder of the results, made if need be")
    only: str = flag("", f"stages to run, separated by commas, of {', '.join(STAGES)} (default: all)")
    minutes: float = flag(10.0, "time of all stages, cut off and named if they need more", gt=0, le=1e4)
    smoke: bool = flag(False, "tiny sizes on the CPU, with the kernels in Triton's interpreter")


class Place:
    """Device and sizes of a stage."""

    def __init__(self, smoke: bool, out: Path) -> None:
        self.smoke, self.out = smoke, out
        self.device = torch.device("cpu" if smoke else "cuda")
        self.dtype = torch.float32 if smoke else torch.bfloat16

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)

    def seconds(self, function: Callable[[], object]) -> float:
        """Seconds of a call, the first one not counted."""
        if not self.smoke:
            function()
        return seconds(function, self.device, 1 if self.smoke else 10)


def machine(place: Place, put: Callable) -> None:
    """Versions, and the bandwidth and FLOP/s that the device reaches."""
    import triton

    versions = {"torch": torch.__version__, "triton": triton.__version__, "cuda": torch.version.cuda}
    put(hardware=describe_hardware(place.device).name, cores=os.cpu_count(), **versions)
    large = place.randn(2**12 if place.smoke else 2**30)
    target = torch.empty_like(large)
    moved = 2 * large.numel() * large.element_size()
    put(copy_bytes_per_second=moved / place.seconds(lambda: target.copy_(large)))
    for m, n, k in [(8192, 8192, 8192), (65536, 5120, 1280), (65536, 1280, 1280), (4096, 32768, 1280)]:
        m, n, k = (size // 128 if place.smoke else size for size in (m, n, k))
        a, b = place.randn(m, k), place.randn(k, n)
        put(product=f"{m} x {k} x {n}", flops=2 * m * n * k / place.seconds(lambda a=a, b=b: a @ b))


def kernels(place: Place, put: Callable) -> None:
    """The choice of kernels, as training asks for it."""
    chosen = dispatch.prepare(place.device, place.dtype, training=True)
    put(**chosen)
    wrong = [f"{name}: {who}" for name, who in chosen.items() if who != "Triton"]
    if wrong or not chosen:
        raise RuntimeError(f"not chosen: {', '.join(wrong) or 'any kernel'}")


def correct(place: Place, put: Callable) -> None:
    """Values and gradients of every configuration against the literal version in float64."""

    def compare(function: Callable, literal: Callable, inputs: list[torch.Tensor], **about: object) -> None:
        results = []
        for f, leaves in ((function, inputs), (literal, [t.double() for t in inputs])):
            leaves = [t.detach().requires_grad_() for t in leaves]
            y = f(*leaves)
            results.append([y.detach(), *torch.autograd.grad(y.float().square().sum(), leaves)])
        errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(*results)]
        put(**about, errors=errors)
        fine.append(all(error <= TOLERANCE[place.dtype] for error in errors))

    fine = []
    for D, T, window in [(16, 40, 7)] if place.smoke else [(128, 239, None), (128, 512, 100)]:
        inputs = [place.randn(2, T, 2, D) for _ in range(3)]
        inputs.append(torch.full((2,), 2 * D**0.25, device=place.device))
        literal = lambda *t, w=window: gaussian_attention(*t, window=w, backend="reference")  # noqa: E731
        for configuration in each_configuration(place):
            ours = lambda *t, w=window: gaussian_attention(*t, window=w, backend="triton")  # noqa: E731
            compare(ours, literal, inputs, configuration=configuration, D=D, T=T, window=window)
    V = 700 if place.smoke else 32768
    targets = torch.randint(-1, V, (99,), device=place.device)
    losses = [lambda h, w, f=f: f(h, w, targets, cap=15.0) for f in (capped_cross_entropy, plain_cross_entropy)]
    compare(*losses, [place.randn(99, 64), torch.randn(V, 64, device=place.device)], vocabulary=V)
    if not all(fine):
        raise RuntimeError("a kernel disagrees with float64")


def each_configuration(place: Place) -> Iterator[str]:
    """Descriptions; while the caller has one, the tuners have this one configuration of forward and of backward."""
    tuners = dispatch.attention_tuners()
    lists = [list(tuner.configs) for tuner in tuners]
    for chosen in zip(*lists):
        for tuner, configuration in zip(tuners, chosen):
            tuner.configs = [configuration]
        yield " / ".join(str(c).partition(", num_ctas")[0] for c in chosen)
        if place.smoke:  # the interpreter has tiles of its own
            break
    for tuner, configurations in zip(tuners, lists):
        tuner.configs = configurations


def attention(place: Place, put: Callable) -> None:
    """FLOP/s of every configuration, and of torch's own back-ends where there is no window."""
    shape = Shape(1, 64, 2, 16, None, place.dtype) if place.smoke else Shape(32, 2048, 10, 128, None, place.dtype)
    z, v = (place.randn(shape.batch, shape.length, shape.heads, shape.head_dim) for _ in range(2))
    z = F.rms_norm(z, z.shape[-1:])
    z.requires_grad_(), v.requires_grad_()
    sigma = torch.full((shape.heads,), shape.head_dim**0.25, device=place.device)

    def measure(function: Callable[[], torch.Tensor], flops: float, **about: object) -> bool:
        try:
            forward, y = place.seconds(function), function()
            dy = torch.ones_like(y)
            backward = place.seconds(lambda: torch.autograd.grad(y, [z, v], dy, retain_graph=True))
            put(**about, forward_flops=flops / forward, backward_flops=2.5 * flops / backward)
            return True
        except RuntimeError as error:
            put(**about, error=in_one_line(error))
            return False

    for window in (None, shape.length // 2):
        flops = Shape(shape.batch, shape.length, shape.heads, shape.head_dim, window, shape.dtype).forward_flops()
        options, ran = {"window": window, "backend": "triton", "equal_key_norms": True}, []
        for configuration in each_configuration(place):
            ours = lambda o=options: gaussian_attention(z, z, v, sigma, **o)  # noqa: E731
            ran.append(measure(ours, flops, kernel=configuration, window=window))
        if not any(ran):
            raise RuntimeError(f"no configuration of our kernels ran with window {window}")
    flops = shape.forward_flops()
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        with sdpa_kernel(backend):
            q, x = z.transpose(1, 2), v.transpose(1, 2)
            theirs = lambda q=q, x=x: F.scaled_dot_product_attention(q, q, x, is_causal=True)  # noqa: E731
            measure(theirs, flops, kernel=f"torch, {backend.name.lower()}", window=None)


def step(place: Place, put: Callable, mixer: str) -> None:
    """A training step of depth 20: compilation, tokens/s, MFU, peak memory; fewer rows where memory is short."""
    for batch in (1,) if place.smoke else (32, 16, 8):
        depth, length, vocabulary = (1, 32, 700) if place.smoke else (20, 2048, 32768)
        settings = StepSettings("auto", "auto", mixer, depth, length, batch, vocabulary, compile=not place.smoke)
        try:
            dispatch.prepare(place.device, place.dtype, training=True)
            training = TrainingStep(mixer, settings, place.device, place.dtype)
            first, taken = seconds(training.run, place.device), place.seconds(training.run)
            peak = training.held_bytes() + peak_memory(training.run, place.device)
        except torch.OutOfMemoryError as error:
            put(mixer=mixer, batch=batch, error=in_one_line(error))
            training = None
            torch.cuda.empty_cache()
            continue
        speed, most = training.tokens / taken, describe_hardware(place.device).peak_flops
        mfu = speed * count(training.config).flops_per_token / most if most else None
        put(mixer=mixer, batch=batch, compile_seconds=first, tokens_per_second=speed, mfu=mfu, peak_bytes=peak)
        return
    raise RuntimeError("no batch fits")


def train(place: Place, put: Callable) -> None:
    """80 steps of depth 12 of two mixers, by the commands that train a model."""
    os.environ["NANOGKA_BASE_DIR"] = str(place.out / "base")
    sizes = "--depth 12 --sequence-len 1024 --num-iterations 80 --total-batch-size 65536 --eval-tokens 65536"
    if place.smoke:
        sizes = "--depth 1 --sequence-len 32 --num-iterations 2 --total-batch-size 64 --eval-tokens 64 --compile off"
    common = f"{sizes} --data embedded --tokenizer first --overwrite --device {place.device.type}".split()
    try:
        if tok_train.main(["--data", "embedded", "--vocab-size", "300" if place.smoke else "4096", "--name", "first"]):
            raise RuntimeError("no tokenizer was trained")
        for mixer in ("gaussian", "dot_product"):
            if base_train.main([*common, "--attention", mixer, "--run", mixer]):
                raise RuntimeError(f"{mixer} did not train")
            lines = map(json.loads, (place.out / f"base/runs/{mixer}/metrics.jsonl").read_text().splitlines())
            losses = [line["loss"] for line in lines if line["kind"] == "train"]
            put(mixer=mixer, losses=losses[:: max(1, len(losses) // 8)], last_loss=losses[-1])
            if not losses[-1] < losses[0] < math.inf:
                raise RuntimeError(f"{mixer}: the loss did not fall")
    finally:
        shutil.rmtree(place.out / "base", ignore_errors=True)


def shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(shown, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def run_stage(name: str, place: Place) -> None:
    """One stage, in the process that is its own; exits 1 if it fails."""
    with open(place.out / "log.txt", "a") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    torch.set_num_threads(1 if place.smoke else torch.get_num_threads())
    if place.smoke:
        dispatch.GPU = "cpu"
    if place.smoke and name != "kernels":  # which has probed them
        asked = [(kernel, "cpu", dtype) for kernel in ("attention", "loss") for dtype in TOLERANCE]
        dispatch._reasons.update(dict.fromkeys(asked))

    def put(**values: object) -> None:
        with open(place.out / "results.jsonl", "a") as file:
            file.write(json.dumps({"stage": name} | values) + "\n")

    stage, _, mixer = name.partition(" ")
    try:
        globals()[stage](place, put, *filter(None, [mixer]))
    except BaseException as error:
        traceback.print_exc()
        put(failed=in_one_line(error))
        os._exit(1)


def body(settings: Settings, errors: Errors) -> int:
    """Run the stages; 1 if one failed."""
    names = [name.strip() for name in settings.only.split(",")] if settings.only else list(STAGES)
    errors.require(set(names) <= set(STAGES), "--only", settings.only, f"stages of {', '.join(STAGES)}")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asks without starting CUDA, which the stages' processes do
    there = settings.smoke or torch.cuda.is_available()
    errors.require(there, "--smoke", settings.smoke, "true, since torch sees no CUDA device here")
    errors.raise_if_any()
    if settings.smoke:
        os.environ["TRITON_INTERPRET"] = "1"
    place = Place(settings.smoke, expand_path(settings.out).absolute())
    place.out.mkdir(parents=True, exist_ok=True)
    (place.out / "results.jsonl").write_text("")
    end, failed = time.monotonic() + 60 * settings.minutes, []
    share = 60 * settings.minutes / sum(STAGES[name] for name in names)
    for position, name in enumerate(names):
        left = end - time.monotonic() - share * sum(STAGES[later] for later in names[position + 1 :])
        process = multiprocessing.get_context("fork").Process(target=run_stage, args=(name, place))
        began = time.monotonic()
        process.start()
        process.join(max(0.0, left))
        if process.is_alive():
            process.kill()
            process.join()
        outcome = {0: "done", -9: "out of time"}.get(process.exitcode, "FAILED")
        outcome += f" after {time.monotonic() - began:.0f} s"
        print(f"{name}: {outcome}", flush=True)
        if process.exitcode < 0:  # killed: it left no line about its end
            with open(place.out / "results.jsonl", "a") as file:
                file.write(json.dumps({"stage": name, "failed": outcome}) + "\n")
        failed += [name] * (process.exitcode != 0)
    lines = [json.loads(line) for line in (place.out / "results.jsonl").read_text().splitlines()]
    rows = [(line.pop("stage"), ", ".join(f"{name} {shown(value)}" for name, value in line.items())) for line in lines]
    (place.out / "results.md").write_text(markdown_table(["stage", "result"], rows, left=2) + "\n")
    print(f"results: {place.out / 'results.md'}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return int(bool(failed))


main = command("gpu_first", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
