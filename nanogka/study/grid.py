"""The grid of a study: what is compared, at which sizes, with which seeds and rates. A YAML file, checked as a whole.

    data: ~/corpus                 # as scripts.base_train takes it
    tokenizer: corpus-4096
    confirm: ~/another             # optional: nothing is chosen by it, its validation split confirms the tables
    settings: {sequence_len: 512, total_batch_size: 4096}      # flags of scripts.base_train, of every job
    match: flops                   # or tokens: then a size has `tokens` in place of `budget`
    sizes:
      small: {depth: 3, budget: 1e13, seeds: [1, 2, 3]}        # and `settings`, of every job of that size
      large: {depth: 6, budget: 1e14, seeds: [1]}
    families:
      baseline: {label: dot product, flags: {attention: dot_product}}
      gka: {flags: {attention: gaussian}, color: "#0072B2", sizes: [small], sweep_as: baseline}
    sweep:                         # optional: stages one after the other; the best value of each is kept
      size: small
      seed: 1
      stages: [{lr_scale: [0.1, 0.3, 1.0]}, {bandwidth_lr: [0.02, 0.1], only: [gka]}]
    reference: baseline            # optional: the family to which the tables give differences; the first by default
    keep: false                    # optional: keep the checkpoints
    measure_tokens: 131072         # optional: of each validation split, its first tokens; all by default

Flags are written with underscores, `true` and `false` for `--flag` and `--no-flag`. What a job sets comes from
`settings`, its size, its family and the sweep; a later one wins. `sweep_as` names a family whose rates another takes.
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import get_type_hints

import yaml
from matplotlib.colors import is_color_like

from nanogka.cli import flag_name, parse, parse_value, plain_type
from nanogka.problems import Problems
from nanogka.train.settings import FREE_ON_RESUME, TrainSettings

HORIZONS = {"flops": "budget", "tokens": "tokens"}  # what is matched: the key of a size that says how much
OWN = {"run", "resume", "overwrite", "dry_run", "tracker", "data", "tokenizer", "shards", "depth", "seed"}
OWN |= {"num_iterations", "target_flops", "target_param_data_ratio"}  # settings that the study itself decides
DEFAULTS = {"keep": 1, "keep_best": 0}
TYPES = {name: plain_type(hint) for name, hint in get_type_hints(TrainSettings).items()}


@dataclass(frozen=True)
class Size:
    """A size: depth, `budget` in FLOPs or tokens (as `Grid.match` says), seeds, settings of its own."""

    name: str
    depth: int
    budget: float
    seeds: tuple[int, ...]
    settings: dict


@dataclass(frozen=True)
class Family:
    """A family of models: its flags, its name and colour for people, the sizes at which it is trained."""

    name: str
    label: str
    color: str | None
    flags: dict
    sizes: tuple[str, ...]
    sweep_as: str


@dataclass(frozen=True)
class Stage:
    """A stage of the sweep: one setting, the values tried, the families that try them (others skip it)."""

    setting: str
    values: tuple
    families: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One training run of a study.

    Attributes:
        swept: setting and value that the sweep gives it, by stage.
        words: of its command line, without data, tokenizer and the run's name.
        settings: the same, parsed.
    """

    family: str
    size: str
    seed: int
    swept: tuple[tuple[str, object], ...]
    words: tuple[str, ...]
    settings: TrainSettings

    @cached_property
    def deciding(self) -> dict:
        """The settings that decide its losses, those that differ from their defaults."""
        return deciding_settings(self.settings)

    @cached_property
    def key(self) -> str:
        """All of them, defaults too, as text: see `settings_key`."""
        return settings_key(self.deciding, {})

    def identity(self, corpus: str, tokenizer: str) -> str:
        """Twelve hexadecimal digits of `deciding` and the fingerprints of the data: the name of its folder."""
        return hashlib.sha256(json.dumps([self.deciding, corpus, tokenizer], sort_keys=True).encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """A name for people."""
        swept = "".join(f", {name} {value}" for name, value in self.swept)
        return f"{self.family} {self.size} seed {self.seed}{swept}"


@dataclass(frozen=True)
class Grid:
    """A checked grid; `read_grid` makes one. See the module for the meaning of the fields."""

    name: str
    data: str
    tokenizer: str
    confirm: str | None
    settings: dict
    match: str
    sizes: dict[str, Size]
    families: dict[str, Family]
    sweep_size: str | None
    sweep_seed: int
    stages: tuple[Stage, ...]
    reference: str
    keep: bool
    measure_tokens: int | None = None
    _jobs: dict = field(default_factory=dict, repr=False, compare=False)

    def job(self, family: str, size: str, seed: int, swept: dict | None = None) -> Job:
        """The job of a family at a size. Raises ValueError, a line a setting, if base_train would refuse it."""
        place = (family, size, seed, tuple((swept or {}).items()))
        if place not in self._jobs:
            at = self.sizes[size]
            values = DEFAULTS | self.settings | at.settings | self.families[family].flags | (swept or {})
            if self.match == "flops":
                horizon = {"target_flops": at.budget}
            else:
                step = to_number(values.get("total_batch_size"))
                if not step:
                    raise ValueError(f"total_batch_size: got {step}, takes a value, where tokens are matched")
                horizon = {"num_iterations": max(1, round(at.budget / step))}
            words, parsed = to_settings(values | {"depth": at.depth, "seed": seed} | horizon)
            self._jobs[place] = Job(*place, tuple(words), parsed)
        return self._jobs[place]

    def stages_of(self, family: str) -> list[Stage]:
        """The stages of the sweep that a family goes through."""
        return [stage for stage in self.stages if family in stage.families]


# ---- from YAML ----


def read_grid(path: Path) -> Grid:
    """Read and check a grid; every job of it is built once.

    Raises:
        ValueError: one line for each problem, beginning with its place in the file.
    """
    content, problems = read_yaml(path), Problems()
    names = ("data", "tokenizer", "sizes", "families")
    optional = ("confirm", "settings", "match", "sweep", "reference", "keep", "measure_tokens")
    if not check_mapping(content, str(path), names, optional, problems):
        problems.raise_any()
    for name in ("data", "tokenizer", "confirm"):
        value = content.get(name)
        problems.check(isinstance(value, str) or (name == "confirm" and value is None), name, value, "text")
    match = content.get("match", "flops")
    problems.check(match in HORIZONS, "match", match, " or ".join(HORIZONS))
    keep = content.get("keep", False)
    problems.check(isinstance(keep, bool), "keep", keep, "true or false")
    most = content.get("measure_tokens")
    problems.check(most is None or is_count(most, 1), "measure_tokens", most, "an integer of at least 1")
    settings = read_settings(content.get("settings"), "settings", problems)
    sizes = read_sizes(content["sizes"], HORIZONS.get(match, "budget"), problems)
    # Names as they stand there, right or wrong: what refers to one that is wrong is not wrong itself.
    named = {part: list(content[part]) if isinstance(content[part], dict) else [] for part in ("sizes", "families")}
    families = read_families(content["families"], named["sizes"], problems)
    size, seed, stages = read_sweep(content.get("sweep"), named["sizes"], named["families"], problems)
    reference = content.get("reference", next(iter(named["families"]), ""))
    known = not families or reference in named["families"]
    problems.check(known, "reference", reference, f"a family: {', '.join(map(str, named['families']))}")
    problems.raise_any()
    grid = Grid(
        name=path.stem,
        data=content["data"],
        tokenizer=content["tokenizer"],
        confirm=content.get("confirm"),
        settings=settings,
        match=match,
        sizes=sizes,
        families=families,
        sweep_size=size,
        sweep_seed=seed,
        stages=tuple(stages),
        reference=reference,
        keep=keep,
        measure_tokens=most,
    )
    check_jobs(grid, problems)
    problems.raise_any()
    return grid


def read_families_of(path: Path) -> dict[str, Family]:
    """The families of a grid alone, whatever else is in the file. Raises ValueError as `read_grid` does."""
    content, problems = read_yaml(path), Problems()
    if not isinstance(content, dict) or "families" not in content:
        raise ValueError(f"{path}: got {type(content).__name__}, takes a mapping with families")
    sizes = content.get("sizes")
    families = read_families(content["families"], list(sizes) if isinstance(sizes, dict) else [], problems)
    problems.raise_any()
    return families


def read_yaml(path: Path) -> object:
    """The content of a YAML file. Raises ValueError if it is none."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: cannot be read as YAML ({' '.join(str(error).split())})") from error


def check_jobs(grid: Grid, problems: Problems) -> None:
    """Build a job of every family at every size, and with every value of the sweep; what is wrong is said once."""
    found: dict[str, str] = {}

    def build(where: str, *place: object) -> None:
        try:
            grid.job(*place)
        except ValueError as error:
            for line in str(error).splitlines():
                found.setdefault(line, f"{where}: {line}")

    for family in grid.families.values():
        for size in family.sizes:
            build(f"families.{family.name} at sizes.{size}", family.name, size, grid.sizes[size].seeds[0])
    for stage in grid.stages:
        for family in stage.families:
            for value in stage.values:
                place = (family, grid.sweep_size, grid.sweep_seed, {stage.setting: value})
                build(f"sweep.stages with families.{family}", *place)
    problems.lines += found.values()


def check_mapping(
    value: object, where: str, required: Sequence[str], optional: Sequence[str], problems: Problems
) -> bool:
    """Record what is wrong with the keys of a mapping; True if it is one with all that is required."""
    takes = f"a mapping with {', '.join(required)}" if required else "a mapping"
    if not isinstance(value, dict):
        return problems.check(False, where, value, takes)
    for key in value:
        known = key in required or key in optional
        problems.check(known, where, key, f"the keys {', '.join((*required, *optional))}")
    missing = [key for key in required if key not in value]
    return problems.check(not missing, where, "no " + ", ".join(missing), takes)


def read_settings(value: object, where: str, problems: Problems) -> dict:
    """Flags of base_train by their names with underscores; those that the study decides are refused."""
    if value is None:
        return {}
    if not problems.check(isinstance(value, dict), where, value, "a mapping of base_train's flags to values"):
        return {}
    return {name: content for name, content in value.items() if check_setting(name, where, problems)}


def check_setting(name: object, where: str, problems: Problems) -> bool:
    """Record a name that is no flag of base_train, or one that the study decides."""
    if name in OWN:
        return problems.check(False, where, name, "other flags than those that the study decides")
    near = get_close_matches(str(name), TYPES, n=1)
    hint = f"; {near[0]}?" if near else ""
    return problems.check(name in TYPES, where, name, f"flags of scripts.base_train, with underscores{hint}")


def read_sizes(value: object, horizon: str, problems: Problems) -> dict[str, Size]:
    """The part `sizes`; sizes that are wrong are left out."""
    sizes = {}
    if not problems.check(isinstance(value, dict) and bool(value), "sizes", value, "a mapping of names to sizes"):
        return {}
    for name, size in value.items():
        where = f"sizes.{name}"
        if not check_mapping(size, where, ("depth", horizon, "seeds"), ("settings",), problems):
            continue
        depth, budget, seeds = size["depth"], to_number(size[horizon]), size["seeds"]
        fine = problems.check(is_count(depth, 1), f"{where}.depth", depth, "an integer of at least 1")
        positive = budget is not None and 0 < budget < math.inf
        fine &= problems.check(positive, f"{where}.{horizon}", size[horizon], "a number above 0")
        listed = isinstance(seeds, list) and bool(seeds) and all(is_count(seed, 0) for seed in seeds)
        fine &= problems.check(listed, f"{where}.seeds", seeds, "a list of integers of at least 0")
        settings = read_settings(size.get("settings"), f"{where}.settings", problems)
        if fine:
            sizes[str(name)] = Size(str(name), depth, budget, tuple(dict.fromkeys(seeds)), settings)
    return sizes


def read_families(value: object, sizes: list[str], problems: Problems) -> dict[str, Family]:
    """The part `families`; families that are wrong are left out."""
    families = {}
    if not problems.check(isinstance(value, dict) and bool(value), "families", value, "a mapping of names to families"):
        return {}
    for name, family in value.items():
        where = f"families.{name}"
        if not check_mapping(family, where, ("flags",), ("label", "color", "sizes", "sweep_as"), problems):
            continue
        flags = read_settings(family["flags"], f"{where}.flags", problems)
        label, color = family.get("label", name), family.get("color")
        problems.check(isinstance(label, str), f"{where}.label", label, "text")
        problems.check(color is None or is_color_like(color), f"{where}.color", color, "a color of matplotlib")
        at = check_names(family.get("sizes"), f"{where}.sizes", sizes, problems)
        source = family.get("sweep_as", name)
        other = source == name or (isinstance(value.get(source), dict) and "sweep_as" not in value[source])
        problems.check(other, f"{where}.sweep_as", source, "a family that has no sweep_as itself")
        families[str(name)] = Family(str(name), str(label), color, flags, at, str(source))
    return families


def read_sweep(
    value: object, sizes: list[str], families: list[str], problems: Problems
) -> tuple[str | None, int, list[Stage]]:
    """The part `sweep`: its size, its seed, its stages."""
    if value is None or not check_mapping(value, "sweep", ("size", "stages"), ("seed",), problems):
        return None, 1, []
    size, seed, listed = value["size"], value.get("seed", 1), value["stages"]
    problems.check(size in sizes, "sweep.size", size, f"a size: {', '.join(sizes)}")
    problems.check(is_count(seed, 0), "sweep.seed", seed, "an integer of at least 0")
    stages = []
    if not problems.check(isinstance(listed, list) and bool(listed), "sweep.stages", listed, "a list of stages"):
        return size, seed, []
    for number, stage in enumerate(listed):
        where = f"sweep.stages[{number}]"
        names = [name for name in stage if name != "only"] if isinstance(stage, dict) else []
        takes = "one flag of base_train with a list of values, and perhaps `only`"
        if not problems.check(len(names) == 1, where, stage, takes) or not check_setting(names[0], where, problems):
            continue
        values = stage[names[0]]
        if not problems.check(isinstance(values, list) and bool(values), where, values, "a list of values"):
            continue
        only = check_names(stage.get("only"), f"{where}.only", families, problems)
        numbers = [to_number(value) if TYPES[names[0]] is not str else None for value in values]  # 1e-2 is YAML's text
        values = [value if number is None else number for value, number in zip(values, numbers)]
        stages.append(Stage(names[0], tuple(values), only))
    return size, seed, stages


def check_names(value: object, where: str, known: list[str], problems: Problems) -> tuple[str, ...]:
    """A list of names, all of them known; those that are not are left out. None stands for all."""
    if value is None:
        return tuple(map(str, known))
    if not problems.check(isinstance(value, list) and bool(value), where, value, f"a list of {', '.join(known)}"):
        return ()
    return tuple(name for name in value if problems.check(name in known, where, name, f"some of {', '.join(known)}"))


def deciding_defaults() -> dict:
    """The defaults of the settings that decide the losses of a run."""
    return {f.name: f.default for f in fields(TrainSettings) if f.name not in FREE_ON_RESUME}


def deciding_settings(settings: TrainSettings) -> dict:
    """The settings that decide the losses of a run, those that differ from their defaults."""
    defaults = deciding_defaults()
    return {name: getattr(settings, name) for name in defaults if getattr(settings, name) != defaults[name]}


def settings_key(settings: dict, defaults: dict) -> str:
    """All settings that decide the losses of a run as text: equal keys are one run.

    Args:
        settings: those that differed from the defaults when it was made.
        defaults: of that time. A flag that base_train got later is taken to have been at the default it has now; one
            that is gone counts only if it was set.
    """
    known = {name: value for name, value in defaults.items() if name in TYPES}
    return json.dumps(deciding_defaults() | known | settings, sort_keys=True)


def to_settings(values: dict) -> tuple[list[str], TrainSettings]:
    """Settings as words of base_train's command line, and parsed as it does. Raises ValueError, a line a setting."""
    problems = Problems()
    words = to_words(values, problems)
    problems.raise_any()
    parsed = parse(TrainSettings, words, "base_train", "", problems)
    parsed.check(problems)
    problems.raise_any()
    return words, parsed


def to_words(values: dict, problems: Problems) -> list[str]:
    """Settings as words of base_train's command line. A truth value is on or off where the flag takes text."""
    words = []
    for name, value in values.items():
        if TYPES[name] is bool:
            if problems.check(isinstance(value, bool), flag_name(name), value, "true or false"):
                words.append(flag_name(name) if value else flag_name(name).replace("--", "--no-", 1))
            continue
        if isinstance(value, bool) and TYPES[name] is str:
            value = "on" if value else "off"  # what YAML makes of these two words
        plain = isinstance(value, int | float | str) and not isinstance(value, bool)
        if problems.check(plain, flag_name(name), value, "a number or text"):
            words.append(f"{flag_name(name)}={value}")
    return words


def to_number(value: object) -> float | None:
    """A number of YAML, which takes 1e13 for text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return parse_value(float, str(value))
    except ValueError:
        return None


def is_count(value: object, least: int) -> bool:
    """True if a value is an integer of at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
