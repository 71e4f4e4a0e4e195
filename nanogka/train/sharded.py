"""Muon and AdamW over all ranks: each rank updates its share, holds the state of its share alone.

    optimizer = ShardedOptimizer(model, rates, horizon, muon_dtype, ranks)
    for i in range(accumulation):
        if i == accumulation - 1:
            optimizer.begin_reduction()     # gradients leave for their owners while the backward pass goes on
        loss.backward()
    optimizer.finish_reduction()
    norm, losses = optimizer.gradient_norm(loss)
    optimizer.step()                        # updates leave for the other ranks while the next ones are computed

With one rank it is the plain optimisers and nothing else. What is divided, and how, is in `nanogka.train.shares`. The
state that goes into a checkpoint is whole and by parameter name, so that any number of ranks can go on from it.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nanogka.distributed import Ranks
from nanogka.model import GPT
from nanogka.train.horizon import Horizon
from nanogka.train.optimizer import Rates, adamw_groups, build_optimizer
from nanogka.train.shares import Common, Share, Sliced, Whole, assign_owners, check_collectives

ALONE = Ranks()
FORMAT = 2  # 1, before optimisers were sharded, had the state of each by index


class ShardedOptimizer:
    """The optimisers of a model, their work and state divided among ranks.

    Args:
        model: where it will stay, its weights the same on every rank.
        rates, horizon, muon_dtype: see `build_optimizer`.
        ranks: the processes, joined (`Ranks.start`) if they are several.

    Attributes:
        optimizers: this rank's AdamW and Muon, whose rates a `Schedule` sets.

    Raises:
        ValueError: if the process group lacks a collective that this needs.
    """

    def __init__(
        self, model: GPT, rates: Rates, horizon: Horizon, muon_dtype: torch.dtype, ranks: Ranks = ALONE
    ) -> None:
        self.ranks = ranks
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        matrices = model.parameter_groups()["matrix"]
        self._names = {"adamw": [n for group in adamw_groups(model).values() for n in group], "muon": list(matrices)}
        self.shares: list[Share] = []
        self.pieces = self.parameters
        if ranks.world_size > 1:
            check_collectives(ranks, model.device)
            self.shares = _divide(self.parameters, matrices, ranks)
            self.pieces = {name: piece for share in self.shares for name, piece in share.pieces.items()}
            self._shapes = list(dict.fromkeys(p.shape for p in matrices.values()))
            self._listen()
        self.adamw, self.muon = self.optimizers = build_optimizer(model, rates, horizon, muon_dtype, self.pieces)

    # ---- gradients ----

    def _listen(self) -> None:
        """Have every parameter say when its gradient is complete."""
        self._reducing, self._missing, self._launched = False, {}, 0
        for share in self.shares:
            for parameter in share.parameters.values():
                parameter.register_post_accumulate_grad_hook(lambda _, share=share: self._arrived(share))

    def begin_reduction(self) -> None:
        """The next backward pass completes the gradients: send each off as soon as it is there."""
        if self.shares:
            self._reducing, self._launched = True, 0
            self._missing = {id(share): len(share.parameters) for share in self.shares}

    def _arrived(self, share: Share) -> None:
        if self._reducing:
            self._missing[id(share)] -= 1
            self._launch(complete_only=True)

    def _launch(self, complete_only: bool) -> None:
        """Start reductions in their fixed order: ranks whose collectives differ in order would wait for ever."""
        while self._launched < len(self.shares):
            share = self.shares[self._launched]
            if complete_only and self._missing[id(share)] > 0:
                return
            share.reduce()
            self._launched += 1

    def finish_reduction(self) -> None:
        """Wait until the gradients of this rank's share are the means over ranks."""
        if self.shares:
            self._launch(complete_only=False)  # the rest got no gradient
            self._reducing = False
            for share in self.shares:
                share.finish_reduce()

    def gradient_norm(self, loss: Tensor) -> tuple[float, list[float]]:
        """Norm of all gradients after the reduction, and each rank's loss; the same on every rank.

        Args:
            loss: scalar, this rank's.
        """
        if not self.shares:
            gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
            return torch.nn.utils.get_total_norm(gradients).item(), [loss.item()]
        gradients = [piece.grad for share in self.shares for piece in share.counted.values()]
        values = torch.zeros(1 + self.ranks.world_size, dtype=torch.float64, device=loss.device)
        values[0] = torch.stack(torch._foreach_norm(gradients)).double().square().sum() if gradients else 0.0
        values[1 + self.ranks.rank] = loss
        dist.all_reduce(values)
        square, *losses = values.tolist()
        return square**0.5, losses

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for p in (*self.parameters.values(), *self.pieces.values()):
            p.grad = None

    # ---- updates ----

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters, on every rank; drops the gradients."""
        self.adamw.step()
        if not self.shares:
            self.muon.step()
        else:
            matrices = [share for share in self.shares if isinstance(share, Whole)]
            for share in self.shares:
                if share not in matrices:
                    share.publish()
            for shape in self._shapes:  # every rank in the same order, whether it has such matrices or not
                self.muon.step_shape(shape)
                for share in matrices:
                    if share.parameter.shape == shape:
                        share.publish()
            for share in self.shares:
                share.finish_publish()
        self.zero_grad()

    # ---- state ----

    def state_bytes(self) -> int:
        """Memory of the optimiser state on this rank."""
        tensors = (t for o in self.optimizers for s in o.state.values() for t in s.values() if isinstance(t, Tensor))
        return sum(t.numel() * t.element_size() for t in tensors)

    def state_bytes_to_come(self) -> int:
        """Memory that the next step will add to it; none after the first."""
        total = 0
        for kind, copies in (("adamw", 2), ("muon", 1)):
            pieces = [self.pieces[name] for name in self._names[kind] if name in self.pieces]
            total += copies * sum(p.numel() * p.element_size() for p in pieces)
        return max(0, total - self.state_bytes())

    def state_dict(self) -> dict | None:
        """The whole state by parameter name, on the main rank; None on the others. All ranks call it.

        Its tensors may be the live ones: copy what is to outlast the next step.
        """
        share_of = {name: share for share in self.shares for name in share.parameters}
        state: dict[str, dict[str, Tensor]] = {}
        for kind, optimizer in zip(self._names, self.optimizers, strict=True):
            if kind == "adamw" and not optimizer.state:  # no step yet
                break
            for name in self._names[kind]:
                mine = optimizer.state.get(self.pieces[name], {}) if name in self.pieces else {}
                whole = {}
                for key in ("momentum",) if kind == "muon" else ("step", "exp_avg", "exp_avg_sq"):
                    part = mine.get(key)
                    whole[key] = part if key == "step" or not self.shares else share_of[name].collect(name, part)
                if self.ranks.is_main:
                    # What was collected is new memory, and must not fill the device; the rest is only referred to.
                    state[name] = {key: value.cpu() if self.shares else value for key, value in whole.items()}
        return {"format": FORMAT, "state": state} if self.ranks.is_main else None

    def load_state_dict(self, saved: dict) -> None:
        """Take this rank's share of a state that `state_dict` gave, or of an older checkpoint's.

        Raises:
            ValueError: if it is of another model, naming what differs.
        """
        state = saved["state"] if saved.get("format") == FORMAT else self._from_format_1(saved)
        if state:
            self._check(state)
        share_of = {name: share for share in self.shares for name in share.parameters}
        for kind, optimizer in zip(self._names, self.optimizers, strict=True):
            mine = [name for name in self._names[kind] if name in self.pieces]
            loaded = optimizer.state_dict()
            loaded["state"] = {}
            for index, name in enumerate(mine):
                parts = state.get(name, {})
                if self.shares:
                    parts = {k: v if k == "step" else share_of[name].part(name, v).clone() for k, v in parts.items()}
                if parts:
                    loaded["state"][index] = parts
            optimizer.load_state_dict(loaded)

    def _from_format_1(self, saved: dict) -> dict[str, dict[str, Tensor]]:
        try:
            return {
                name: saved[str(i)]["state"][index]
                for i, names in enumerate(self._names.values())
                for index, name in enumerate(names)
            }
        except (KeyError, TypeError):
            raise ValueError(
                f"--resume: the checkpoint's optimiser state has the keys {sorted(map(str, saved))}, takes format "
                f"{FORMAT} or the one before it"
            ) from None

    def _check(self, state: dict[str, dict[str, Tensor]]) -> None:
        unlike = sorted(set(state) ^ set(self.parameters))
        for name in set(state) & set(self.parameters):
            shapes = {tuple(value.shape) for key, value in state[name].items() if key != "step"}
            if shapes != {tuple(self.parameters[name].shape)}:
                unlike.append(name)
        if unlike:
            raise ValueError(
                f"--resume: the checkpoint's optimiser state differs from the model in {len(unlike)} parameters: "
                f"{', '.join(unlike[:4])}{', …' if len(unlike) > 4 else ''}"
            )


def _divide(parameters: dict[str, nn.Parameter], matrices: dict[str, nn.Parameter], ranks: Ranks) -> list[Share]:
    """The shares in the order in which a backward pass completes their gradients: the reverse of the model's."""
    owners = assign_owners({name: p.shape for name, p in matrices.items()}, ranks.world_size)
    shares: list[Share] = []
    small: dict[str, nn.Parameter] = {}
    for name, parameter in reversed(parameters.items()):
        if name in matrices:
            shares.append(Whole(name, parameter, ranks, owners[name]))
        elif parameter.ndim > 1:
            shares.append(Sliced(name, parameter, ranks))
        else:
            small[name] = parameter
    return [*shares, Common(small, ranks)] if small else shares
