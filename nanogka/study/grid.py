"""The grid of a study, a YAML file of families, sizes, seeds and learning rates.

    data: ~/corpus                 # as in scripts.base_train
    confirm: ~/another             # optional: a second corpus, whose validation split is measured too
    val_name: shard A              # optional: names of the two validation splits in the report
    confirm_name: shard B
    tokenizer: corpus-4096
    settings: {sequence_len: 512, total_batch_size: 4096}      # flags of scripts.base_train, for every run
    sizes:
      small: {depth: 3, budget: 1e13, seeds: [1, 2, 3], lr_scale: [0.6, 1.2, 2.4]}
      large: {depth: 6, budget: 1e14, seeds: [1], settings: {lr_scale: 1.2}}
    families:
      baseline: {label: dot product, flags: {attention: dot_product}}
      gka: {flags: {attention: gaussian}, color: "#0072B2", sizes: [small]}
    reference: baseline            # optional: tables show differences to this family (default: the first)
    subject: gka                   # optional: the report has the lead of this family (nanogka.study.lead) …
    controls: [baseline]           # … over these (default: the reference)
    title: GKA leads early         # optional: title of the figures (default: the best family at the largest budget)
    keep: false                    # optional: keep the checkpoints
    measure_tokens: 131072         # optional: measure only the first tokens of each validation split

`budget` is the training FLOPs of a run. A size without it has another horizon in `settings`: `num_iterations` or
`target_param_data_ratio`. Each family tries every `lr_scale` of a size with the first seed and uses its best one for
the other seeds. The best rate depends on the length of the training, so a choice holds for one size only. Flags are
written with underscores, and `true` or `false` means `--flag` or `--no-flag`. A run's settings come from `settings`,
its size and its family. The last one wins. A family may have a `time` per training token, in any unit, such as the
computed time on a GPU: the report then compares at equal time too.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import yaml
from matplotlib.colors import is_color_like
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from nanogka.common.cli import flag_name, flags_of, parse
from nanogka.common.errors import Errors
from nanogka.common.files import read_yaml
from nanogka.train.plan import FolderSettings
from nanogka.train.settings import TrainSettings, complete_settings

# Values of a row apart from the settings of its run: fingerprints of the text and of the vocabulary.
FINGERPRINTS = ("corpus", "tokenizer")
# Only the last checkpoint: a run resumes from it, and base_eval measures it.
CHECKPOINTS = {"keep": "1", "keep_best": "0"}


def _color(name: str) -> str:
    if not is_color_like(name):
        raise ValueError("not a matplotlib color")
    return name


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Part(BaseModel):
    """A mapping in the file. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid")


class Size(Part):
    """Depth, training FLOPs (`budget`), seeds, learning rates to try, and further settings."""

    depth: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    budget: Positive | None = None
    lr_scale: list[Positive] = []
    settings: dict[str, str] = {}


class Family(Part):
    """Models that differ only in size: their flags, label, color, time per token, and sizes to train (default: all)."""

    flags: dict[str, str]
    label: str = ""
    color: Annotated[str, AfterValidator(_color)] | None = None
    sizes: Annotated[list[str], Field(min_length=1)] = []
    time: Positive | None = None
    name: str = ""


class Grid(Part):
    """A checked grid, made by `read_grid`. The module's docstring explains the fields."""

    data: str
    tokenizer: str
    confirm: str | None = None
    val_name: str = "validation"
    confirm_name: str = "confirm"
    settings: dict[str, str] = {}
    match: Literal["flops"] = "flops"  # earlier grids could also match tokens
    sizes: Annotated[dict[str, Size], Field(min_length=1)]
    families: Annotated[dict[str, Family], Field(min_length=1)]
    reference: str = ""
    subject: str = ""
    controls: list[str] = []
    title: str = ""
    keep: bool = False
    measure_tokens: Annotated[int, Field(ge=1)] | None = None
    name: str = ""
    _jobs: dict = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _complete(self) -> "Grid":
        """Fill in defaults and check references between the parts."""
        self.reference = self.reference or next(iter(self.families))
        errors = Errors()
        known = f"one of {', '.join(self.families)}"
        errors.require(self.reference in self.families, "reference", self.reference, known)
        errors.require(self.subject in ("", *self.families), "subject", self.subject, known)
        self.controls = self.controls or [self.reference]
        for name in self.controls if self.subject else ():
            errors.require(name in self.families and name != self.subject, "controls", name, "other families")
        for size in self.sizes.values():
            size.seeds = list(dict.fromkeys(size.seeds))
        for name, family in self.families.items():
            family.name, family.label = name, family.label or name
            family.sizes = family.sizes or list(self.sizes)
            for size in family.sizes:
                errors.require(size in self.sizes, f"families.{name}.sizes", size, f"some of {', '.join(self.sizes)}")
        errors.raise_if_any()
        return self

    def rates(self, family: str, size: str) -> list[float | None]:
        """Return the values of `lr_scale` that a family tries at a size. None means the value in its settings."""
        rates = [] if "lr_scale" in self.families[family].flags else self.sizes[size].lr_scale
        return [*rates] or [None]

    def job(self, family: str, size: str, seed: int, rate: float | None = None) -> "Job":
        """Build the run of a family at a size. Raises ValueError with one line per bad setting."""
        place = (family, size, seed, rate)
        if place not in self._jobs:
            at = self.sizes[size]
            # Later settings win: those of the family over those of the size, over those of the grid.
            texts = CHECKPOINTS | self.settings | at.settings | self.families[family].flags
            texts |= {} if rate is None else {"lr_scale": str(rate)}
            settings = replace(parse_flags(texts), depth=at.depth, seed=seed, target_flops=at.budget)
            errors = Errors()
            settings.check(errors)
            errors.raise_if_any()
            self._jobs[place] = Job(family, size, seed, settings)
        return self._jobs[place]


def decisive(settings: dict) -> dict:
    """Return the settings that decide the losses of a run. They identify its result.

    A row that is older than a setting lacks it and had today's default. None means the same as absent.
    """
    flags, known = flags_of(TrainSettings), complete_settings(settings)
    left_out = {name for name, one in flags.items() if one.affects != "losses" or one.through in FINGERPRINTS}
    return {name: value for name, value in known.items() if name not in left_out and value is not None}


def set_by_study() -> set[str]:
    """Names of the settings that the study sets: the run's folder, the data, and what a size says in its own fields."""
    data = {name for name, one in flags_of(TrainSettings).items() if one.through in FINGERPRINTS}
    return {*flags_of(FolderSettings), *data, "depth", "seed", "target_flops"}


@dataclass(frozen=True)
class Job:
    """One training run of a study."""

    family: str
    size: str
    seed: int
    settings: TrainSettings

    @cached_property
    def decisive(self) -> dict:
        """The settings that decide its losses."""
        return decisive(self.settings.to_dict())

    @property
    def rate(self) -> str:
        """The learning-rate scale as text."""
        return "default" if self.settings.lr_scale is None else f"{self.settings.lr_scale:g}"

    @property
    def title(self) -> str:
        """Family, size, seed and learning rate in one line."""
        return f"{self.family} {self.size} seed {self.seed}, lr_scale {self.rate}"


def read_grid(path: Path) -> Grid:
    """Read and check a grid, and build each of its jobs once. Raises ValueError with one line per problem."""
    try:
        # The base loader keeps every value as text, as on a command line: `on` stays text, and 1e13 can become a
        # number.
        grid = Grid.model_validate(read_yaml(path, yaml.BaseLoader))
    except ValidationError as error:
        raise ValueError("\n".join(f"{path}: {line}" for one in error.errors() for line in describe(one))) from None
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    grid.name = path.stem
    problems: dict[str, str] = {}  # report a bad setting of the whole grid only once, for the first job
    for name, family in grid.families.items():
        for size in family.sizes:
            for rate in grid.rates(name, size):
                try:
                    grid.job(name, size, grid.sizes[size].seeds[0], rate)
                except ValueError as error:
                    for line in str(error).splitlines():
                        problems.setdefault(line, f"{path}: families.{name} at sizes.{size}: {line}")
    if problems:
        raise ValueError("\n".join(problems.values()))
    return grid


def describe(error: ErrorDetails) -> list[str]:
    """Format one of pydantic's errors, such as `sizes.small.depth: Field required`."""
    place = ".".join(str(part) for part in error["loc"])
    return [f"{place}: {line}".lstrip(": ") for line in error["msg"].removeprefix("Value error, ").splitlines()]


def parse_flags(texts: dict[str, str]) -> TrainSettings:
    """Convert flags of the grid to the settings of base_train. Raises ValueError with one line per bad flag."""
    errors, words, known, taken = Errors(), [], flags_of(TrainSettings), set_by_study()
    for name, text in texts.items():
        free = name in known and name not in taken
        if not errors.require(free, name, text, "a flag of base_train, with underscores"):
            continue
        if known[name].kind is not bool:
            words.append(f"{flag_name(name)}={text}")
        elif errors.require(text in ("true", "false"), flag_name(name), text, "true or false"):
            words.append(flag_name(name if text == "true" else f"no_{name}"))
    settings = parse(TrainSettings, words, "base_train", "", errors)
    errors.raise_if_any()
    return settings
