"""The grid of a study: which families are compared, at which sizes, with which seeds and rates. A YAML file.

    data: ~/corpus                 # as scripts.base_train takes it
    tokenizer: corpus-4096
    confirm: ~/another             # optional: a second corpus; its validation split decides nothing, it confirms
    val_name: shard A              # optional: names of the two validation splits in the report
    confirm_name: shard B
    settings: {sequence_len: 512, total_batch_size: 4096}      # flags of scripts.base_train, of every job
    match: flops                   # or tokens: then a size has `tokens` in place of `budget`
    sizes:
      small: {depth: 3, budget: 1e13, seeds: [1, 2, 3], lr_scale: [0.6, 1.2, 2.4]}
      large: {depth: 6, budget: 1e14, seeds: [1], settings: {lr_scale: 1.2}}
    families:
      baseline: {label: dot product, flags: {attention: dot_product}}
      gka: {flags: {attention: gaussian}, color: "#0072B2", sizes: [small]}
    reference: baseline            # optional: the tables give differences to this family; the first by default
    keep: false                    # optional: keep the checkpoints
    measure_tokens: 131072         # optional: measure the first tokens of each validation split; all by default

Every family tries each `lr_scale` of a size with the first seed, and takes its best for the other seeds: which one that
is depends on the length of the training. Flags are written with underscores, `true` and `false` for `--flag` and
`--no-flag`. A job takes its settings from `settings`, its size and its family; a later one wins.
"""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from matplotlib.colors import is_color_like

from nanogka.common.cli import flag_name, flags_of, parse
from nanogka.common.errors import Errors
from nanogka.common.files import read_yaml
from nanogka.train.settings import FREE_ON_RESUME, TrainSettings, with_network_defaults

try:
    from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError
except ImportError as error:
    raise ValueError('takes pydantic: pip install "nanogka[study]"') from error

# Settings that the study decides itself.
OWN = {"run", "resume", "overwrite", "dry_run", "tracker", "data", "tokenizer", "shards", "depth", "seed"}
OWN |= {"num_iterations", "target_flops", "target_param_data_ratio"}
CHECKPOINTS = {"keep": "1", "keep_best": "0"}


def _known_flag(name: str) -> str:
    if name in OWN:
        raise ValueError("other flags than those that the study decides")
    known = flags_of(TrainSettings)
    if name not in known:
        near = get_close_matches(name, known, n=1)
        raise ValueError("flags of scripts.base_train, with underscores" + (f"; {near[0]}?" if near else ""))
    return name


def _color(name: str) -> str:
    if not is_color_like(name):
        raise ValueError("a color of matplotlib")
    return name


Flag = Annotated[str, AfterValidator(_known_flag)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=0)]


class Part(BaseModel):
    """A mapping of the file; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid")


class Size(Part):
    """A size: depth, seeds, FLOPs (`budget`) or tokens, learning rates to try, settings of its own."""

    depth: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)]
    budget: Positive | None = None
    tokens: Positive | None = None
    lr_scale: list[Positive] = []
    settings: dict[Flag, str] = {}

    @property
    def amount(self) -> float:
        return self.tokens if self.budget is None else self.budget


class Family(Part):
    """A family of models: its flags, its name and color for people, the sizes at which it is trained (None: all)."""

    flags: dict[Flag, str]
    label: str = ""
    color: Annotated[str, AfterValidator(_color)] | None = None
    sizes: Annotated[list[str], Field(min_length=1)] | None = None
    name: str = ""


class Families(BaseModel):
    """The families of a grid, whatever else is in the file."""

    families: Annotated[dict[str, Family], Field(min_length=1)]

    def model_post_init(self, context: Any) -> None:
        for name, family in self.families.items():
            family.name, family.label = name, family.label or name


class Grid(Families, Part):
    """A checked grid; `read_grid` makes one. See the module for the meaning of the fields."""

    data: str
    tokenizer: str
    confirm: str | None = None
    val_name: str = "validation"
    confirm_name: str = "confirm"
    settings: dict[Flag, str] = {}
    match: Literal["flops", "tokens"] = "flops"
    sizes: Annotated[dict[str, Size], Field(min_length=1)]
    reference: str = ""
    keep: bool = False
    measure_tokens: Annotated[int, Field(ge=1)] | None = None
    name: str = ""
    _jobs: dict = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any) -> None:
        super().model_post_init(context)
        self.reference = self.reference or next(iter(self.families))
        for size in self.sizes.values():
            size.seeds = list(dict.fromkeys(size.seeds))
        for family in self.families.values():
            family.sizes = list(self.sizes) if family.sizes is None else family.sizes

    def rates(self, family: str, size: str) -> list[float | None]:
        """The values of `lr_scale` that a family tries at a size; None for the one that its settings give."""
        return [None] if "lr_scale" in self.families[family].flags else self.sizes[size].lr_scale or [None]

    def job(self, family: str, size: str, seed: int, rate: float | None = None) -> "Job":
        """The job of a family at a size. Raises ValueError, one line per setting, if base_train would refuse it."""
        place = (family, size, seed, rate)
        if place not in self._jobs:
            at = self.sizes[size]
            texts = CHECKPOINTS | self.settings | at.settings | self.families[family].flags
            texts |= {} if rate is None else {"lr_scale": str(rate)}
            horizon = {"target_flops": at.amount} if self.match == "flops" else {"num_tokens": at.amount}
            settings = to_settings(texts, depth=at.depth, seed=seed, **horizon)
            self._jobs[place] = Job(family, size, seed, settings)
        return self._jobs[place]


def decisive(settings: dict) -> dict:
    """The settings that decide the losses of a run; an absent one had today's default, None is the same as absent."""
    known = with_network_defaults({name: one.default for name, one in flags_of(TrainSettings).items()} | settings)
    return {name: value for name, value in known.items() if name not in FREE_ON_RESUME and value is not None}


@dataclass(frozen=True)
class Job:
    """One training run of a study."""

    family: str
    size: str
    seed: int
    settings: TrainSettings

    @cached_property
    def decisive(self) -> dict:
        return decisive(self.settings.to_dict())

    @property
    def rate(self) -> str:
        """The learning rate, as a factor of the network's, for people."""
        return "default" if self.settings.lr_scale is None else f"{self.settings.lr_scale:g}"

    @property
    def title(self) -> str:
        rate = "" if self.settings.lr_scale is None else f", lr_scale {self.rate}"
        return f"{self.family} {self.size} seed {self.seed}{rate}"


# ---- from YAML ----

Model = TypeVar("Model", bound=BaseModel)
TAKES = {
    "missing": "a value",
    "extra_forbidden": "no such key",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "list_type": "a list",
    "string_type": "a number or text",
    "too_short": "at least one",
}


def read_grid(path: Path) -> Grid:
    """Read and check a grid; every job of it is built once. Raises ValueError, one line per problem with its place."""
    grid, errors = read_part(path, Grid), Errors()
    grid.name = path.stem
    check_names(grid, errors)
    check_jobs(grid, errors)
    errors.lines = [f"{path}: {line}" for line in errors.lines]
    errors.raise_if_any()
    return grid


def read_part(path: Path, model: type[Model]) -> Model:
    """A YAML file as a `Grid`, or of one the `Families` alone. Raises ValueError, one line per problem."""
    try:
        # The base loader leaves every value as it is written: `on` is text and 1e13 a number, as on a command line.
        content = read_yaml(path, yaml.BaseLoader)
        return model.model_validate(content)
    except ValidationError as error:
        raise ValueError("\n".join(f"{path}: {describe_error(one)}" for one in error.errors())) from error
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error


def describe_error(error: dict) -> str:
    """An error of pydantic as `sizes.small.depth: got 'deep', expected a valid integer`."""
    parts = [part for part in error["loc"] if part != "[key]"]
    where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")
    takes = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ").partition(", unable")[0]
    takes = "a number " * takes.startswith(("greater", "less")) + takes
    got = "nothing" if error["type"] == "missing" else repr(error["input"])
    return f"{where + ': ' if where else ''}got {got}, expected {TAKES.get(error['type'], takes)}"


def check_names(grid: Grid, errors: Errors) -> None:
    """Record names that stand for nothing."""

    def check(where: str, names: list[str], known: dict) -> None:
        for name in names:
            errors.require(name in known, where, name, f"some of {', '.join(known)}")

    wanted, other = ("budget", "tokens") if grid.match == "flops" else ("tokens", "budget")
    for name, size in grid.sizes.items():
        fits = getattr(size, wanted) is not None and getattr(size, other) is None
        errors.require(fits, f"sizes.{name}", size.amount, f"`{wanted}`, since {grid.match} are matched")
    for name, family in grid.families.items():
        check(f"families.{name}.sizes", family.sizes, grid.sizes)
    check("reference", [grid.reference], grid.families)


def check_jobs(grid: Grid, errors: Errors) -> None:
    """Build a job of every family at every size and rate; each complaint counts once."""
    found: dict[str, str] = {}
    for name, family in grid.families.items():
        for size in (size for size in family.sizes if size in grid.sizes):
            for rate in grid.rates(name, size):
                try:
                    grid.job(name, size, grid.sizes[size].seeds[0], rate)
                except ValueError as error:
                    for line in str(error).splitlines():
                        found.setdefault(line, f"families.{name} at sizes.{size}: {line}")
    errors.lines += found.values()


def to_settings(texts: dict[str, str], num_tokens: float | None = None, **values: object) -> TrainSettings:
    """Settings from texts, parsed as base_train does, and from values. Raises ValueError, one line per setting.

    `num_tokens`: horizon, in whole steps.
    """
    errors, words, known = Errors(), [], flags_of(TrainSettings)
    for name, text in texts.items():
        if known[name].kind is not bool:
            words.append(f"{flag_name(name)}={text}")
        elif errors.require(text in ("true", "false"), flag_name(name), text, "true or false"):
            words.append(flag_name(name if text == "true" else f"no_{name}"))
    settings = replace(parse(TrainSettings, words, "base_train", "", errors), **values)
    if num_tokens is not None:
        step = settings.total_batch_size
        if errors.require(bool(step), "--total-batch-size", step, "a value, where tokens are matched"):
            settings = replace(settings, num_iterations=max(1, round(num_tokens / step)))
    settings.check(errors)
    errors.raise_if_any()
    return settings
