"""Grids and results without any training."""

import random
from pathlib import Path

import yaml
from world import make_text

from nanogka.data import open_corpus
from nanogka.data.vocabulary import train_on_corpus
from nanogka.study.grid import Grid, Job, read_grid
from nanogka.study.plan import Results, plan_jobs

GRID = {
    "data": "text",
    "tokenizer": "tiny",
    "settings": {"sequence_len": 32, "total_batch_size": 128, "compile": "off", "dtype": "float32"},
    "sizes": {
        "small": {"depth": 1, "budget": "1e10", "seeds": [1, 2], "lr_scale": [0.1, "3e-1", 1]},
        "large": {"depth": 2, "budget": 1e11, "seeds": [1, 2, 1]},
    },
    "families": {
        "baseline": {"label": "dot product", "flags": {"attention": "dot_product"}},
        "gka": {"flags": {"attention": "gaussian"}},
        "wide": {"flags": {"attention": "gaussian", "bandwidth_init": 9, "lr_scale": 0.3}},
    },
}


def write_grid(path: Path, **changes: object) -> Path:
    """A grid file: `GRID` with other parts."""
    path.write_text(yaml.safe_dump(GRID | changes, sort_keys=False), encoding="utf-8")
    return path


def row(job: Job, val_bpb: float | None, **values: object) -> dict:
    """A line of results."""
    facts = {
        "id": "0123456789ab",
        "family": job.family,
        "size": job.size,
        "depth": job.settings.depth,
        "seed": job.seed,
        "settings": job.decisive,
        "val_bpb": val_bpb,
        "confirm_bpb": val_bpb and val_bpb + 0.5,
        "parameters": 1000 * job.settings.depth,
        "flops_per_token": 6000,
        "cache_bytes_per_token": 512,
        "steps": 10,
        "tokens": 1280,
        "flops": int(job.settings.target_flops),
        "curve": [[0, 8.0], [5, 3.0], [10, val_bpb]],
        "seconds": 10.0,
        "tokens_per_second": 128.0,
        "hardware": "Example CPU",
        "dtype": "float32",
        "compiled": False,
        "torch": "2.9.0",
        "corpus": "corpus",
        "tokenizer": "tokenizer",
        "confirm": "another",
        "measure_tokens": 4096,
    }
    return facts | values


def finish(grid: Grid, loss) -> list[dict]:
    """The results of a whole study, `loss(job)` the bits per byte of each."""
    results = Results([], {})
    while todo := plan_jobs(grid, results.find).ready:
        for job in todo:
            results.add(row(job, loss(job)))
    return results.rows


def grid_with(path: Path, **changes: object) -> Grid:
    """The grid that `write_grid` writes, read."""
    return read_grid(write_grid(path, **changes))


def make_data(folder: Path, *corpora: str) -> None:
    """Corpora of a few words, and `tiny`, the tokenizer of the first, in the base folder `folder`/base."""
    rng = random.Random(0)
    for name in corpora:
        make_text(folder / name, rng, 40, 180)
    tokenizer = train_on_corpus(open_corpus(folder / corpora[0]), 280, max_chars=10**6, doc_cap=10**4)
    tokenizer.save(folder / "base" / "tokenizers" / "tiny")
