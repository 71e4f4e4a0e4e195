"""The training loop.

    trainer = Trainer(prepare(settings, ranks), evaluations)
    trainer.run()

A step is: micro-batches forward and backward, gradients averaged over ranks, a check that loss and gradients are
finite, the update. After it: log, save if due, evaluate if due, in this order, so that an evaluation cannot lose it.
Training does not wait for a checkpoint to reach the disk; an evaluation does.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone

import torch
import yaml

from nanogka.data import PackingLoader
from nanogka.data.loader import Batch
from nanogka.model import GPT, attention_name
from nanogka.train.bad_batch import Finding, NonFiniteError, documents_of, examine, shorten, unexplained
from nanogka.train.checkpoint import Checkpoint, load_checkpoint, remove_partial
from nanogka.train.dry_run import dry_run
from nanogka.train.metrics import MetricsLog, Progress, open_wandb, read_metrics, si
from nanogka.train.optimizer import Schedule
from nanogka.train.preparation import Preparation
from nanogka.train.sharded import ShardedOptimizer
from nanogka.train.signals import EXIT_CODES, StopRequest
from nanogka.train.spikes import SpikeWatch
from nanogka.train.writer import CheckpointError, CheckpointWriter

SMOOTHING = 0.9


class NoDataError(Exception):
    """The loader gave no batch, for the reason that is its cause; the weights are those of the last finished step."""


@dataclass(frozen=True)
class Evaluation:
    """Something to measure now and then: `run(model)` gives numbers to log under their names.

    All ranks call it; `every` steps, and at the start and end.
    """

    every: int
    run: Callable[[GPT], dict[str, float]]


class Trainer:
    """One run, from preparation to the last checkpoint.

    Args:
        preparation: what `prepare` found.
        evaluations: what to measure on the way.
    """

    def __init__(self, preparation: Preparation, evaluations: list[Evaluation]) -> None:
        self.prep, self.evaluations = preparation, evaluations
        self.ranks, self.settings, self.horizon = preparation.ranks, preparation.settings, preparation.horizon
        self.model = GPT(preparation.config, seed=self.settings.seed, compute_dtype=preparation.dtype)
        self.model.to(preparation.device)
        self.model.activation_checkpointing = self.settings.activation_checkpointing
        muon_dtype = torch.bfloat16 if preparation.dtype == torch.bfloat16 else torch.float32
        rates = self.settings.rates
        self.optimizer = ShardedOptimizer(self.model, rates, self.horizon, muon_dtype, self.ranks)
        self.schedule = Schedule(
            self.horizon.num_iterations,
            self.settings.warmup_ratio,
            self.settings.warmdown_ratio,
            self.settings.final_lr_frac,
        )
        self.step, self.smooth_loss, self.seconds, self.loader_state = 0, 0.0, 0.0, None
        self.skipped, self.spikes = 0, SpikeWatch(self.settings.spike_deviations)
        self.log: MetricsLog | None = None  # the first rank's
        self.writer: CheckpointWriter | None = None  # the first rank's, while it runs
        self._refuse_different_starts()
        if preparation.resume_from is not None:
            self._restore(load_checkpoint(preparation.resume_from))
        elif (weights := preparation.initial_weights()) is not None:
            self.model.load_state_dict(weights)
        self.loss_function = torch.compile(self.model, dynamic=False) if preparation.compile else self.model

    def run(self) -> int:
        """Train to the end of the horizon; returns 0, or the exit code of the signal that stopped it.

        Raises:
            NonFiniteError: before the update that would have spoilt the weights, of a batch that is one too many.
            CheckpointError: at the step after a checkpoint could not be written.
            ValueError: if the batch does not fit the device's memory.
        """
        if self.step == self.horizon.num_iterations and self._is_complete():
            return 0
        with reproducible_on_cpu(self.prep.device):
            self.prep = dry_run(self.prep, self.model, self.loss_function, self.optimizer)
            log = self.log = self._open_folder() if self.ranks.is_main else None
            progress = Progress(self.horizon.num_iterations, self.step, quiet=not self.ranks.is_main)
            self.progress = progress
            try:
                with (
                    self.prep.loader(self.loader_state) as loader,
                    StopRequest() as stop,
                    self._open_writer(log, progress) as self.writer,
                ):
                    self._watch(loader, stop, progress)
                    return self._steps(loader, stop, log, progress)
            finally:
                progress.close()
                if log is not None:
                    log.close()

    def _steps(self, loader: PackingLoader, stop: StopRequest, log: MetricsLog | None, progress: Progress) -> int:
        total = self.horizon.num_iterations
        self._evaluate(log, progress)
        while self.step < total:
            try:
                values = self._step(loader)
            except NoDataError as error:
                return self._leave_without_data(error.__cause__, stop, progress)
            if log is not None:
                log.write("train", self.step, **values)
            progress.update(self.step, self._summary(values))
            stopped, failed = self._asked(stop.received is not None, self.writer is not None and self.writer.failed)
            if failed:
                self._raise_write_error()
            every = self.settings.save_every
            if stopped or self.step == total or (every and self.step % every == 0):
                self._save()
            if stopped:
                self._finish_writing()
                return self._say_stopped(stop, progress)
            self._evaluate(log, progress)
        return 0

    def _watch(self, loader: PackingLoader, stop: StopRequest, progress: Progress) -> None:
        """Say what the loader waits for; stop waiting when asked to, where no other rank waits for this one."""
        loader.on_wait = progress.say
        loader.interrupted = lambda: self.ranks.world_size == 1 and stop.received is not None

    def _leave_without_data(self, error: BaseException, stop: StopRequest, progress: Progress) -> int:
        """Save the last finished step where one rank can do that alone; then raise, or stop as was asked."""
        if self.ranks.world_size > 1 or self.step == 0:
            raise error
        self._save()
        self._finish_writing()
        if not isinstance(error, InterruptedError):
            raise error
        return self._say_stopped(stop, progress)

    def _say_stopped(self, stop: StopRequest, progress: Progress) -> int:
        received = stop.received or min(EXIT_CODES)  # the signal may have come to another rank
        progress.say(f"stopped by {received.name} after step {self.step}; --resume auto goes on from there")
        return EXIT_CODES[received]

    def _asked(self, *flags: bool) -> list[bool]:
        """Each flag, whether it is true on any rank: all ranks then do the same."""
        return [total > 0 for total in self.ranks.sum([float(flag) for flag in flags], self.prep.device)]

    def _step(self, loader: PackingLoader) -> dict:
        """One update; returns what to log of it."""
        began, waited = time.perf_counter(), loader.data_wait
        while True:
            batches, parts, loss_value, norm_value = self._gradients(loader)
            if math.isfinite(loss_value) and math.isfinite(norm_value):
                break
            self._skip_or_stop(batches, loss_value, norm_value)
        lr_scale = self.schedule.apply(self.optimizer.optimizers, self.step)
        self.optimizer.step()
        self.step += 1
        self.loader_state = batches[-1].state
        self._watch_loss(loss_value, batches, parts)
        self.smooth_loss = SMOOTHING * self.smooth_loss + (1 - SMOOTHING) * loss_value
        seconds = time.perf_counter() - began
        self.seconds += seconds
        tokens = self.horizon.total_batch_size
        sigma = self.model.bandwidths()
        return {
            "loss": loss_value,
            "smooth_loss": self.smooth_loss / (1 - SMOOTHING**self.step),
            "lr_scale": lr_scale,
            "tokens": self.step * tokens,
            "flops": self.step * tokens * self.prep.accounting.flops_per_token,
            "tokens_per_second": tokens / seconds,
            "flops_per_second": tokens * self.prep.accounting.flops_per_token / seconds,
            "grad_norm": norm_value,
            "seconds": seconds,
            "total_seconds": self.seconds,
            "data_wait": loader.data_wait - waited,
            **loader.progress,
            "bandwidth_min": min((values.min().item() for values in sigma.values()), default=None),
            "bandwidth_max": max((values.max().item() for values in sigma.values()), default=None),
            "bandwidth": [values.tolist() for values in sigma.values()],
            "bandwidth_layers": list(sigma),
        }

    def _gradients(self, loader: PackingLoader) -> tuple[list[Batch], list[torch.Tensor], float, float]:
        """Forward and backward; returns the micro-batches, the loss of each, loss and gradient norm over all ranks."""
        accumulation, device = self.prep.accumulation, self.prep.device
        loss, batches, parts = torch.zeros((), device=device), [], []
        for micro in range(accumulation):
            try:
                batches.append(next(loader))
            except (ValueError, InterruptedError) as error:
                raise NoDataError from error
            inputs, targets = (t.to(device, non_blocking=True) for t in (batches[-1].inputs, batches[-1].targets))
            part = self.loss_function(inputs, targets) * batches[-1].weight / accumulation
            if micro == accumulation - 1:
                self.optimizer.begin_reduction()
            part.backward()
            parts.append(part.detach())
            loss += parts[-1]
        self.optimizer.finish_reduction()
        norm, losses = self.optimizer.gradient_norm(loss)
        return batches, parts, sum(losses) / len(losses), norm

    def _skip_or_stop(self, batches: list[Batch], loss: float, norm: float) -> None:
        """Report a batch whose numbers are not finite, drop its gradients, and raise if it is one too many."""
        self.optimizer.zero_grad()
        cause = f"the gradient norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
        locate, rank = self.prep.locate, self.ranks.rank
        mine = examine(self.model, self.loss_function, batches, rank, self.prep.device, locate)
        found: list[Finding] = sum(self.ranks.gather(mine), [])
        if not found:
            found = self.ranks.gather(unexplained(batches, rank, locate))
        lines = "".join(f"\n  {finding.describe()}" for finding in found)
        self.skipped += 1
        allowed = self.settings.skip_bad_batches
        if self.skipped > allowed:
            had = f" ({allowed} such batches were skipped before it)" if allowed else ""
            raise NonFiniteError(
                f"stopped at step {self.step + 1} before its update: {cause}{had}. The weights of step {self.step} are "
                f"sound, and the checkpoints under {self.prep.folder / 'checkpoints'} are untouched. Lower the "
                "learning rates (--lr-scale), try --dtype float32, or pass over such batches (--skip-bad-batches)."
                + lines
            )
        self.progress.say(f"step {self.step + 1}: {cause}; batch skipped ({self.skipped} of {allowed}){lines}")
        if self.log is not None:
            findings = [finding.to_dict() for finding in found]
            self.log.write("skip", self.step, cause=cause, skipped=self.skipped, findings=findings)

    def _watch_loss(self, loss: float, batches: list[Batch], parts: list[torch.Tensor]) -> None:
        """Report a loss that stands out, with the micro-batch that had the highest."""
        spike = self.spikes.see(loss)
        if spike is None:
            return
        micro = int(torch.stack(parts).argmax())
        mine = (parts[micro].item() * len(parts), self.ranks.rank, micro)
        documents = documents_of(batches[micro], (), self.prep.locate)
        (highest, rank, micro), documents = max(self.ranks.gather((mine, documents)))
        where = f"rank {rank}, micro-batch {micro} (loss {highest:.4f})"
        self.progress.say(f"step {self.step}: {spike.describe()}; highest in {where}; documents: {shorten(documents)}")
        if self.log is not None:
            about = {"mean": spike.mean, "deviation": spike.deviation, "highest": highest}
            self.log.write("spike", self.step, loss=loss, **about, rank=rank, micro_batch=micro, documents=documents)

    def _summary(self, values: dict) -> str:
        peak = self.prep.hardware.peak_flops
        flops = values["flops_per_second"]
        mfu = f" ({flops / (peak * self.ranks.world_size):.0%} MFU)" if peak else ""
        wait = values["data_wait"] / values["seconds"]
        waiting = f"  data wait {wait:.0%}" if wait > 0.01 else ""
        speed = f"{si(values['tokens_per_second'])} tok/s  {si(flops)}FLOP/s{mfu}{waiting}"
        return f"loss {values['smooth_loss']:.3f}  {speed}"

    def _evaluate(self, log: MetricsLog | None, progress: Progress) -> None:
        last = self.step == self.horizon.num_iterations
        for evaluation in self.evaluations:
            due = last or (evaluation.every > 0 and self.step % evaluation.every == 0)
            if not due:
                continue
            self._finish_writing()  # an evaluation that brings the process down must not lose the step
            values = evaluation.run(self.model)
            if self.writer is not None and self.prep.score in values:
                self.writer.score(self.step, values[self.prep.score])
            if log is not None:
                tokens = self.step * self.horizon.total_batch_size
                log.write(
                    "eval", self.step, tokens=tokens, flops=tokens * self.prep.accounting.flops_per_token, **values
                )
            progress.say(f"step {self.step}: " + ", ".join(f"{name} {value:.4f}" for name, value in values.items()))

    def _is_complete(self) -> bool:
        """Whether the last step's evaluations are there too: a crash may have come between."""
        lines = read_metrics(self.prep.folder / "metrics.jsonl")
        return not self.evaluations or any(line["kind"] == "eval" and line["step"] == self.step for line in lines)

    def _open_folder(self) -> MetricsLog:
        """Create or continue the run's folder; returns its open metrics log."""
        folder, resuming = self.prep.folder, self.prep.resume_from is not None
        if not resuming and folder.exists():
            clear_run(folder)
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        remove_partial(folder / "checkpoints")
        if not resuming:
            self.prep.tokenizer.save(folder / "tokenizer")
            partial = folder / ".config.yaml.partial"
            partial.write_text(yaml.safe_dump(self._config(), sort_keys=False, allow_unicode=True))
            partial.rename(folder / "config.yaml")
            self.prep.add_files(folder)
        wandb = open_wandb(self.settings.wandb_run, self._config())
        log = MetricsLog(folder / "metrics.jsonl", self.step if resuming else None, wandb)
        if not resuming:
            about = self._config()["run"]
            del about["kind"]  # a line's own kind is "run"
            log.write("run", 0, **about)
        return log

    def _config(self) -> dict:
        prep = self.prep
        return {
            "model": prep.config.to_dict(),
            "settings": prep.settings_as_run().to_dict(),
            "run": {
                "tag": prep.folder.name,
                "kind": prep.kind,
                "attention": attention_name(prep.config.mixer_pattern),
                "depth": prep.config.n_layer,
                "parameters": prep.accounting.total_parameters,
                "flops_per_token": prep.accounting.flops_per_token,
                "total_batch_size": prep.horizon.total_batch_size,
                "num_iterations": prep.horizon.num_iterations,
                "hardware": prep.hardware.name,
                "peak_flops": prep.hardware.peak_flops,
                "world_size": prep.ranks.world_size,
                "device": prep.device.type,
                "dtype": str(prep.dtype).removeprefix("torch."),
                "compiled": prep.compile,
                "activation_checkpointing": self.settings.activation_checkpointing,
                "torch": str(torch.__version__),
                "tokenizer": prep.tokenizer.fingerprint,
                **prep.facts(),
                "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            },
        }

    def _open_writer(self, log: MetricsLog | None, progress: Progress) -> AbstractContextManager:
        """The first rank's writer of checkpoints, which knows the validations of an earlier part of the run."""
        if log is None:
            return nullcontext()
        lines, score = read_metrics(self.prep.folder / "metrics.jsonl"), self.prep.score
        return CheckpointWriter(
            self.prep.folder / "checkpoints",
            keep=self.settings.keep,
            keep_best=self.settings.keep_best,
            scores={line["step"]: line[score] for line in lines if line["kind"] == "eval" and score in line},
            resumed_from=self.step,
            say=progress.say,
        )

    def _save(self) -> None:
        states, optimizer = self.ranks.gather(self.loader_state), self.optimizer.state_dict()
        if self.writer is not None:
            state = {"loader": self.prep.merge_states(states), "smooth_loss": self.smooth_loss, "seconds": self.seconds}
            state |= {"skipped": self.skipped, "spikes": self.spikes.state()}
            self.writer.submit(Checkpoint(self.step, self.model.state_dict(), optimizer, state))

    def _finish_writing(self) -> None:
        if self.writer is not None:
            self.writer.wait()

    def _raise_write_error(self) -> None:
        if self.writer is not None:
            self.writer.check()
        raise CheckpointError("stopped, because the first rank could not write a checkpoint")

    def _refuse_different_starts(self) -> None:
        """Each node looks for the checkpoint itself, and must have found the same one."""
        starts = [path and path.name for path in self.ranks.gather(self.prep.resume_from)]
        if len(set(starts)) > 1:
            found = ", ".join(f"rank {rank}: {start or 'none'}" for rank, start in enumerate(starts))
            raise ValueError(
                f"--resume: got different checkpoints on different ranks ({found}), takes one; let NANOGKA_BASE_DIR be "
                "a folder that all nodes share"
            )

    def _restore(self, checkpoint: Checkpoint) -> None:
        self.model.load_state_dict(checkpoint.weights)
        self.optimizer.load_state_dict(checkpoint.optimizer)
        self.step, self.loader_state = checkpoint.step, checkpoint.state["loader"]
        self.smooth_loss, self.seconds = checkpoint.state["smooth_loss"], checkpoint.state["seconds"]
        self.skipped = checkpoint.state.get("skipped", 0)
        self.spikes = SpikeWatch(self.settings.spike_deviations, checkpoint.state.get("spikes"))


@contextmanager
def reproducible_on_cpu(device: torch.device) -> Iterator[None]:
    """Keep sums in one order on a CPU, where a resumed run promises the same losses bit for bit.

    A compiled embedding's gradient is else added up by all threads at once, in the order in which they come.
    """
    before, filled = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # a debugging aid that costs time
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = filled


def clear_run(folder) -> None:
    """Delete what an earlier run of that name left, and nothing else."""
    import shutil

    for name in ("checkpoints", "plots", "tokenizer"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("config.yaml", "metrics.jsonl", "evaluation.json", "chat_evaluation.json", "report.md"):
        (folder / name).unlink(missing_ok=True)
