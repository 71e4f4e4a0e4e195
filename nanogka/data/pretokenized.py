"""A corpus whose documents are tokens already, read by memory mapping.

    python -m scripts.pretokenize --data ~/corpora/mine --tokenizer mine
    python -m scripts.base_train --data ~/.cache/nanogka/tokens/mine-mine --tokenizer mine

It stands for the corpus it was made from: the same rows under the same numbers, the same fingerprint. So the loader
gives the same batches, and a run may change from one to the other in the middle. A folder holds

    tokens.json                fingerprints of corpus and tokenizer, rows of each block of each shard
    train_00000.bin            the ids of one shard's documents end to end: uint16, or uint32 if there are over 65 536
    train_00000.offsets.npy    (rows + 1,) int64: row i is ids[offsets[i] : offsets[i + 1]], empty for no document
    tokenizer/                 the tokenizer, which gives the text back where it is asked for
"""

import json
import os
import shutil
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from nanogka.data.corpus import SPLITS, Corpus, Encode, check_split
from nanogka.tokenizer import Tokenizer

META = "tokens.json"
FORMAT = 1
OPEN_SHARDS = 4


class TokenCorpus(Corpus):
    """A pretokenised corpus; see the module. `path` is its own folder, `fingerprint` its source's."""

    def __init__(self, path: str | Path) -> None:
        """Opens what `pretokenize` wrote.

        Raises:
            ValueError: if `tokens.json` cannot be read, or a file is missing or has another size than it should.
        """
        self.path = Path(path)
        meta = _read_meta(self.path)
        self.fingerprint: str = meta["corpus"]
        self.tokenizer_fingerprint: str = meta["tokenizer"]
        self.source: str = meta["source"]
        self.dtype = np.dtype(meta["dtype"])
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, int], tuple[np.ndarray, np.ndarray]] = OrderedDict()
        self._tokenizer: Tokenizer | None = None
        self._shards = meta["splits"]
        self._blocks = {}
        for split in SPLITS:
            shards = self._shards[split]
            for shard in shards:
                _check_size(self.path / f"{_stem(split, shard['shard'])}.bin", shard["tokens"] * self.dtype.itemsize)
            sizes = np.array([rows for shard in shards for rows in shard["rows"]], np.int64)
            index = np.repeat(np.arange(len(shards)), [len(shard["rows"]) for shard in shards])
            first = np.concatenate([np.cumsum([0, *shard["rows"]])[:-1] for shard in shards]).astype(np.int64)
            self._blocks[split] = sizes, np.array([shard["shard"] for shard in shards], np.int64)[index], index, first

    def blocks(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        return self._blocks[check_split(split)][:2]

    def read(self, split: str, block: int, rows: Sequence[int] | None = None) -> list[str | None]:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = Tokenizer.load(self.path / "tokenizer")
        decode = self._tokenizer.decode
        arrays = self.read_tokens(split, block, rows)
        return [None if ids is None else decode(ids.tolist()) for ids in arrays]

    def read_tokens(
        self, split: str, block: int, rows: Sequence[int] | None = None, encode: Encode | None = None
    ) -> list[np.ndarray | None]:
        sizes, _, index, first = self._blocks[check_split(split)]
        chosen = np.arange(sizes[block]) if rows is None else np.asarray(rows, np.int64)
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < sizes[block]:
            raise IndexError(f"rows of block {block}: it has {sizes[block]}")
        ids, offsets = self._shard(split, int(index[block]))
        at = chosen + first[block]
        ends = zip(offsets[at].tolist(), offsets[at + 1].tolist())
        return [ids[begin:end] if end > begin else None for begin, end in ends]

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        if tokenizer.fingerprint != self.tokenizer_fingerprint:
            raise ValueError(
                f"--data: got {str(self.path)!r}, tokens of the tokenizer {self.tokenizer_fingerprint[:12]}…, and"
                f" --tokenizer {tokenizer.fingerprint[:12]}…; takes the one they were made with"
                f" ({self.path / 'tokenizer'}), or pretokenise again"
            )

    def describe(self) -> str:
        train, val = (
            (sum(shard["documents"] for shard in self._shards[split]), sum(s["tokens"] for s in self._shards[split]))
            for split in SPLITS
        )
        return (
            f"{self.path}: tokens of {self.source}, {train[0]:,} training documents ({train[1]:,} tokens),"
            f" {val[0]:,} validation documents ({val[1]:,} tokens)"
        )

    def _shard(self, split: str, index: int) -> tuple[np.ndarray, np.ndarray]:
        """(ids, offsets) of a shard; a few stay open, since each takes a file handle."""
        key = (split, index)
        with self._lock:
            if key not in self._open:
                self._open[key] = self._map(split, self._shards[split][index])
                if len(self._open) > OPEN_SHARDS:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
            return self._open[key]

    def _map(self, split: str, shard: dict) -> tuple[np.ndarray, np.ndarray]:
        stem = self.path / _stem(split, shard["shard"])
        file = Path(f"{stem}.offsets.npy")
        try:
            offsets = np.load(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file}: cannot be read ({error}); pretokenise again") from error
        if offsets.shape != (sum(shard["rows"]) + 1,) or offsets[-1] != shard["tokens"] or (np.diff(offsets) < 0).any():
            raise ValueError(f"{file}: does not fit {META}; pretokenise again")
        if not shard["tokens"]:  # nothing cannot be mapped
            return np.empty(0, self.dtype), offsets
        # A plain array on the map: slicing numpy's own subclass costs more than packing the slice does.
        return np.asarray(np.memmap(f"{stem}.bin", self.dtype, "r")).view(np.ndarray), offsets


def pretokenize(
    corpus: Corpus,
    tokenizer: Tokenizer,
    out: Path,
    *,
    num_threads: int | None = None,
    progress: Callable[[int, int], None] = lambda rows, tokens: None,
) -> TokenCorpus:
    """Writes the tokens of `corpus` into the folder `out`, which appears when it is complete.

    Broken off and called again, it goes on with the first shard that is not finished. `progress` is told of rows and
    tokens as they are done.

    Raises:
        ValueError: if `corpus` cannot be read, or `out` is there already.
    """
    if out.exists():
        raise ValueError(f"--out: got {str(out)!r}, which is there already; takes a new folder")
    meta = {
        "format": FORMAT,
        "corpus": corpus.fingerprint,
        "tokenizer": tokenizer.fingerprint,
        "source": str(corpus.path),
        "vocab_size": tokenizer.vocab_size,
        "dtype": "uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
    }
    partial = _begin(out.with_name(f".{out.name}.partial"), meta)
    splits: dict[str, list[dict]] = {}
    with ThreadPoolExecutor(num_threads or min(8, os.cpu_count() or 1)) as pool:
        for split in SPLITS:
            sizes, shard_of = corpus.blocks(split)
            splits[split] = []
            for shard in np.unique(shard_of).tolist():
                blocks = np.flatnonzero(shard_of == shard)
                stem = partial / _stem(split, shard)
                lengths = _finished(stem, int(sizes[blocks].sum()), np.dtype(meta["dtype"]).itemsize)
                if lengths is None:
                    lengths = _write_shard(stem, corpus, split, blocks, tokenizer, pool, meta["dtype"], progress)
                else:
                    progress(len(lengths), int(lengths.sum()))
                counts = {"tokens": int(lengths.sum()), "documents": int((lengths > 0).sum())}
                splits[split].append({"shard": shard, "rows": sizes[blocks].tolist(), **counts})
    tokenizer.save(partial / "tokenizer")
    (partial / META).write_text(json.dumps({**meta, "splits": splits}) + "\n", encoding="utf-8")
    os.rename(partial, out)
    return TokenCorpus(out)


def _begin(partial: Path, meta: dict) -> Path:
    """The folder of an unfinished attempt, emptied unless it was at the same work."""
    plan = partial / "plan.json"
    try:
        same = json.loads(plan.read_text(encoding="utf-8")) == meta
    except (OSError, ValueError):
        same = False
    if not same:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        plan.write_text(json.dumps(meta), encoding="utf-8")
    return partial


def _finished(stem: Path, rows: int, itemsize: int) -> np.ndarray | None:
    """Tokens of each row of a shard that an earlier attempt finished, (rows,); None if it did not."""
    try:
        offsets = np.load(f"{stem}.offsets.npy")
        size = Path(f"{stem}.bin").stat().st_size
    except (OSError, ValueError):
        return None
    return np.diff(offsets) if len(offsets) == rows + 1 and offsets[-1] * itemsize == size else None


def _write_shard(
    stem: Path,
    corpus: Corpus,
    split: str,
    blocks: np.ndarray,
    tokenizer: Tokenizer,
    pool: ThreadPoolExecutor,
    dtype: str,
    progress: Callable[[int, int], None],
) -> np.ndarray:
    """Writes one shard's two files, the offsets last; returns the tokens of each row, (rows,)."""
    lengths: list[int] = []
    with open(f"{stem}.bin", "wb") as file:
        for block in blocks.tolist():
            arrays = corpus.read_tokens(split, block, None, lambda texts: tokenizer.encode_arrays(texts, pool))
            lengths.extend(0 if ids is None else len(ids) for ids in arrays)
            ids = [ids for ids in arrays if ids is not None]
            if ids:
                file.write(np.concatenate(ids).astype(dtype).tobytes())
            progress(len(arrays), sum(map(len, ids)))
        file.flush()
        os.fsync(file.fileno())
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    unnamed = Path(f"{stem}.offsets.partial.npy")
    np.save(unnamed, offsets)
    os.replace(unnamed, f"{stem}.offsets.npy")
    return np.diff(offsets)


def _stem(split: str, shard: int) -> str:
    return f"{split}_{shard:05d}"


def _read_meta(folder: Path) -> dict:
    path = folder / META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        known = meta["format"] == FORMAT and set(meta["splits"]) == set(SPLITS) and meta["corpus"] and meta["tokenizer"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: cannot be read ({error!r}); pretokenise again") from None
    if not known:
        raise ValueError(f"{path}: is not of format {FORMAT}, which this version reads; pretokenise again")
    return meta


def _check_size(file: Path, size: int) -> None:
    found = file.stat().st_size if file.is_file() else None
    if found != size:
        what = "is missing" if found is None else f"has {found:,} bytes, takes {size:,}"
        raise ValueError(f"{file}: {what}; pretokenise again")
