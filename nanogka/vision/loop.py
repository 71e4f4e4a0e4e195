"""The training loop on images, from a batch to an update.

    run = prepare(settings, ranks, problems)
    with ranks.joined(run.device):
        exit_code = train(run)

The parts are timm's: AdamW with its groups, the cosine schedule, Mixup and CutMix, the moving average. What is drawn in
a step is drawn from its number, so that a run that goes on from any step draws what it would have drawn.
"""

import math
import time
from collections.abc import Iterator
from contextlib import ExitStack

import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nanogka.checkpoint import Checkpoint, load_checkpoint, load_weights, remove_partial, shorten
from nanogka.formatting import si
from nanogka.runs import CONFIG, METRICS, write_config
from nanogka.signals import StopRequest
from nanogka.train.folder import RunOutput, delete, locked
from nanogka.train.loop import EXIT_NON_FINITE
from nanogka.train.metrics import MetricsLog, Progress
from nanogka.train.survival import reproducible_on_cpu
from nanogka.train.writer import CheckpointWriter
from nanogka.vision.attention import GaussianAttention
from nanogka.vision.data import ImageBatch, Prepared, draw_epoch, load, seed_everything, train_transform
from nanogka.vision.evaluate import measure_accuracy
from nanogka.vision.run import EMA, RESULTS, ImageRun, build_config, build_model, split_weights

# First number of the key of each kind of draw.
OF_WEIGHTS, OF_IMAGES, OF_STEP = 0, 1, 2


def train(run: ImageRun) -> int:
    """Train from the start or a checkpoint to the end; all ranks call it, joined.

    Returns:
        Exit code: 0 done, 3 a loss or gradient was not finite (before the update that would have spoilt the weights),
        130 or 143 stopped by SIGINT or SIGTERM after saving.

    Raises:
        ValueError: if the run cannot be entered, or too many images in a row cannot be read.
        CheckpointError: if a checkpoint could not be written.
    """
    with locked(run), reproducible_on_cpu(run.device):
        trainer = Trainer(run)
        with ImageRunFolder(run, trainer.step) as output, StopRequest() as stop:
            return trainer.train(output, stop)


class Trainer:
    """A model and what updates it, restored from the checkpoint that the run goes on from."""

    def __init__(self, run: ImageRun) -> None:
        settings, self.run = run.settings, run
        seed_everything(settings.seed, OF_WEIGHTS)
        self.model = build_model(run.model).to(run.device)
        self.optimizer = create_optimizer_v2(
            self.model, opt="adamw", lr=settings.lr, weight_decay=settings.weight_decay
        )
        self.schedule, _ = create_scheduler_v2(
            self.optimizer,
            num_epochs=settings.epochs,
            min_lr=settings.min_lr,
            warmup_lr=min(settings.warmup_lr, settings.lr),
            warmup_epochs=settings.warmup_epochs,
            step_on_epochs=False,
            updates_per_epoch=run.steps_per_epoch,
        )
        self.average = ModelEmaV3(self.model, decay=settings.ema) if settings.ema else None
        self.mix = self._mixing()
        self.loss = SoftTargetCrossEntropy() if self.mix else nn.CrossEntropyLoss(label_smoothing=settings.smoothing)
        self.step, self.seconds = 0, 0.0
        if run.resume_from is not None:
            self._restore()
        self.parallel = self.model
        if run.ranks.world_size > 1:
            devices = [run.device.index] if run.device.type == "cuda" else None
            self.parallel = DistributedDataParallel(self.model, device_ids=devices)

    def _mixing(self) -> Mixup | None:
        s = self.run.settings
        if not (s.mixup or s.cutmix):
            return None
        classes = len(self.run.data.classes)
        return Mixup(s.mixup, s.cutmix, label_smoothing=s.smoothing, num_classes=classes)

    def _restore(self) -> None:
        checkpoint = load_checkpoint(self.run.resume_from)
        plain, averaged = split_weights(checkpoint.weights)
        load_weights(self.model, plain, f"--resume: {self.run.resume_from}")
        if self.average:
            load_weights(self.average.module, averaged, f"--resume: {self.run.resume_from}")
        self.optimizer.load_state_dict(checkpoint.optimizer["adamw"])
        self.step, self.seconds = checkpoint.step, checkpoint.state["seconds"]

    def checkpoint(self) -> Checkpoint:
        """All that a run needs to go on."""
        weights = self.model.state_dict()
        if self.average:
            weights = weights | {EMA + name: value for name, value in self.average.module.state_dict().items()}
        state = {"seconds": self.seconds}
        return Checkpoint(self.step, weights, {"adamw": self.optimizer.state_dict()}, state)

    def batches(self) -> Iterator[ImageBatch]:
        """This rank's batches from the step that is next to the end."""
        run, settings = self.run, self.run.settings
        transform = train_transform(run.data, settings, run.model["img_size"])
        shape = (run.data.channels, run.model["img_size"], run.model["img_size"])
        for epoch in range(self.step // run.steps_per_epoch, settings.epochs):
            ranks = run.ranks.rank, run.ranks.world_size
            drawn = list(enumerate(draw_epoch(len(run.data.train.targets), settings, epoch, *ranks)))
            done = (self.step - epoch * run.steps_per_epoch) * run.batch
            prepared = Prepared(run.data.train, transform, shape, (settings.seed, OF_IMAGES, epoch, run.ranks.rank))
            yield from load(prepared, drawn[done : run.steps_per_epoch * run.batch], run.batch, settings.workers, True)

    def train(self, output: RunOutput, stop: StopRequest) -> int:
        """Update until the end; see `train`."""
        run, ranks = self.run, self.run.ranks
        self.parallel.train()
        batches = self.batches()
        if self.step:
            self._measure_if_due(output)  # which comes after saving, so that it may have been lost
        while self.step < run.steps:
            began = time.perf_counter()
            batch = next(batches)
            waited = time.perf_counter() - began
            loss, norm = self.forward_backward(batch)
            loss_sum, damaged = ranks.sum([loss, len(batch.damaged)], run.device)
            loss = loss_sum / ranks.world_size
            if not (math.isfinite(loss) and math.isfinite(norm)):
                cause = f"the gradient norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
                output.say(
                    f"stopped at step {self.step + 1} before its update: {cause}. The checkpoints under "
                    f"{run.folder / 'checkpoints'} are untouched. Lower --lr, or try --dtype float32."
                )
                return EXIT_NON_FINITE
            self.schedule.step_update(self.step)
            self.optimizer.step()
            self.step += 1
            if self.average:
                self.average.update(self.model, step=self.step)
            seconds = time.perf_counter() - began
            self.seconds += seconds
            names = []
            if damaged:
                names = [run.data.train.name(index) for indices in ranks.gather(batch.damaged) for index in indices]
                output.say(f"step {self.step}: {len(names)} damaged images replaced: {shorten(names)}")
            self._log(output, loss, norm, seconds, waited, names)
            if (code := self._save(output, stop)) is not None:
                return code
            self._measure_if_due(output)
        return 0

    def forward_backward(self, batch: ImageBatch) -> tuple[float, float]:
        """Loss of a batch on this rank, and the norm of all ranks' gradient, which it leaves clipped."""
        run = self.run
        seed_everything(run.settings.seed, OF_STEP, self.step, run.ranks.rank)
        if run.device.type == "cuda":
            torch.cuda.manual_seed(torch.default_generator.initial_seed())
        images, labels = (t.to(run.device, non_blocking=True) for t in (batch.images, batch.labels))
        if self.mix:
            images, labels = self.mix(images, labels)
        with torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
            loss: Tensor = self.loss(self.parallel(images).float(), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), run.settings.clip_grad or math.inf)
        return loss.item(), norm.item()

    def _log(
        self, output: RunOutput, loss: float, norm: float, seconds: float, waited: float, damaged: list[str]
    ) -> None:
        run, images = self.run, self.run.settings.batch_size
        rate = self.optimizer.param_groups[0]["lr"]
        values = {
            "epoch": self.step / run.steps_per_epoch,
            "images": self.step * images,
            "loss": loss,
            "lr": rate,
            "grad_norm": norm,
            "images_per_second": images / seconds,
            "seconds": seconds,
            "total_seconds": self.seconds,
            "data_wait": waited,
            "bandwidth": bandwidths(self.model),
            **({"replaced": damaged} if damaged else {}),
        }
        output.log("train", self.step, **values)
        output.update(self.step, f"loss {loss:.3f}  {si(images / seconds)} images/s")

    def _save(self, output: RunOutput, stop: StopRequest) -> int | None:
        """Save if due, stop if asked; the exit code if the run ends here."""
        run, settings, ranks = self.run, self.run.settings, self.run.ranks
        stopped, failed = ranks.any([stop.received is not None, output.failed], run.device)
        if failed:
            output.raise_failure()
        epoch, rest = divmod(self.step, run.steps_per_epoch)
        due = rest == 0 and settings.save_every and epoch % settings.save_every == 0
        if due or stopped or self.step == run.steps:
            output.save(self.checkpoint())
        return output.stop(ranks, stop.received, self.step) if stopped else None

    def _measure_if_due(self, output: RunOutput) -> None:
        epoch, rest = divmod(self.step, self.run.steps_per_epoch)
        every = self.run.settings.eval_every
        if self.step == self.run.steps or (rest == 0 and every and epoch % every == 0):
            output.wait()  # a measurement that brings the process down must not lose the step
            self.measure(output)

    def measure(self, output: RunOutput) -> None:
        """Measure and log the model, and its average."""
        run = self.run
        common = {"size": run.model["img_size"], "batch": max(run.batch, 64), "device": run.device, "dtype": run.dtype}
        common |= {"ranks": run.ranks, "workers": run.settings.workers}
        values = measure_accuracy(self.model, run.data, **common)
        if self.average:
            averaged = measure_accuracy(self.average.module, run.data, **common)
            values |= {f"ema_{name}": averaged[name] for name in ("top1", "top5", "val_loss") if name in averaged}
        output.log("eval", self.step, epoch=self.step / run.steps_per_epoch, **values)
        shown = [f"{name} {100 * values[name]:.2f} %" for name in ("top1", "top5", "ema_top1") if name in values]
        bad = f", {values['damaged']} damaged images left out" if values["damaged"] else ""
        output.say(f"epoch {self.step / run.steps_per_epoch:g}: {', '.join(shown)}, loss {values['val_loss']:.4f}{bad}")


def bandwidths(model: VisionTransformer) -> list[list[float]]:
    """σ of each head of each layer that has them."""
    return [layer.bandwidth.tolist() for layer in model.modules() if isinstance(layer, GaussianAttention)]


class ImageRunFolder(RunOutput):
    """The open folder of a run on images."""

    def __init__(self, run: ImageRun, step: int) -> None:
        super().__init__(run.ranks.is_main)
        self.run, self.step = run, step

    def open(self, stack: ExitStack) -> None:
        run, folder, config = self.run, self.run.folder, build_config(self.run)
        resuming = run.resume_from is not None
        if not resuming:
            delete(folder, ("checkpoints", CONFIG, METRICS, *RESULTS))
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        remove_partial(folder / "checkpoints")
        if not resuming:
            write_config(folder, config)
        self._log = MetricsLog(folder / METRICS, self.step if resuming else None)
        stack.callback(self._log.close)
        if not resuming:
            self.log("run", 0, **{name: value for name, value in config["run"].items() if name != "kind"})
        self.progress = Progress(run.steps, self.step)
        stack.callback(self.progress.close)
        self._writer = stack.enter_context(
            CheckpointWriter(
                folder / "checkpoints", keep=run.settings.keep, resumed_from=self.step, say=self.progress.say
            )
        )
