"""Pictures with labels: where they come from, and how they become batches that a resumed run draws again.

Every image draws from a generator of its own, seeded with the run's seed, epoch, rank and the image's place in the
epoch. So an augmented image depends neither on how many workers read, nor on where a run was stopped. timm's own loader
cannot begin in the middle of an epoch; its transforms and its sampler are used.
"""

import gzip
import hashlib
import os
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform
from timm.data.auto_augment import RandAugment, posterize
from timm.data.distributed_sampler import RepeatAugSampler
from timm.data.readers.reader_image_folder import find_images_and_targets
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from nanogka.common.files import expand_path, open_regular
from nanogka.common.formatting import first_few
from nanogka.vision.settings import VisionSettings

DIGITS, FASHION, HUB = "digits", "fashion-mnist", "hf:"
FASHION_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
FASHION_CLASSES = "T-shirt,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot".split(",")
UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # what PIL raises of damaged files
MOST_TRIES = 50  # neighbors of a damaged image
HELD_OUT = 360  # of scikit-learn's 1 797 digits
Transform = Callable[[Image.Image], Tensor]


class Pictures(Protocol):
    """Pictures by their number."""

    targets: Sequence[int]

    def open(self, index: int) -> Image.Image:
        """The picture. Raises one of `UNREADABLE`."""

    def name(self, index: int) -> str:
        """A name by which a person finds it."""


@dataclass(frozen=True)
class ImageData:
    """Two splits of pictures."""

    name: str
    train: Pictures
    val: Pictures
    classes: list[str]  # their names, by label
    size: int | None  # pixels along a side; None where they differ
    channels: int
    mean: tuple[float, ...]  # of each channel, of values from 0 to 1
    std: tuple[float, ...]
    fingerprint: str  # of which pictures are in it and how they are labeled


# ---- sources ----


def open_image_data(name: str) -> ImageData:
    if name == DIGITS:
        return _digits()
    if name == FASHION:
        return open_idx(FASHION_FOLDER, FASHION, FASHION_CLASSES)
    if name.startswith(HUB):
        return _hub(name.removeprefix(HUB))
    return _folder(name)


class Arrays:
    """Gray pictures (N, height, width) uint8 in memory."""

    def __init__(self, pixels: np.ndarray, targets: np.ndarray) -> None:
        self.pixels, self.targets = pixels, targets.tolist()

    def open(self, index: int) -> Image.Image:
        return Image.fromarray(self.pixels[index])

    def name(self, index: int) -> str:
        return f"number {index}"


class Files:
    """Pictures in files, in color."""

    def __init__(self, root: Path, files: list[tuple[str, int]]) -> None:
        self.root, self.paths, self.targets = root, [path for path, _ in files], [label for _, label in files]

    def open(self, index: int) -> Image.Image:
        with open_regular(self.paths[index]) as file, Image.open(file) as picture:
            return picture.convert("RGB")

    def name(self, index: int) -> str:
        return os.path.relpath(self.paths[index], self.root)


class Rows:
    """Pictures of a table of the datasets library, in color."""

    def __init__(self, table, image: str, label: str) -> None:
        self.table, self.image, self.targets = table.select_columns([image]), image, table[label][:]

    def open(self, index: int) -> Image.Image:
        return self.table[index][self.image].convert("RGB")

    def name(self, index: int) -> str:
        return f"row {index}"


def _digits() -> ImageData:
    """scikit-learn's digits, 8 × 8, of which a fixed random fifth is held out."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        takes = f"which takes scikit-learn: pip install scikit-learn ({error})"
        raise ValueError(f"--data: got {DIGITS!r}, {takes}") from error
    digits = load_digits()
    pixels, labels = np.round(digits.images * (255 / 16)).astype(np.uint8), digits.target
    order = np.random.RandomState(0).permutation(len(labels))
    train, val = (Arrays(pixels[part], labels[part]) for part in (order[HELD_OUT:], order[:HELD_OUT]))
    return _gray(DIGITS, train, val, [str(digit) for digit in range(10)])


def open_idx(folder: Path, name: str, classes: list[str]) -> ImageData:
    """MNIST's four files (idx, gzip): a train and a t10k pair of images and labels."""
    parts = []
    for split in ("train", "t10k"):
        pixels = _read_idx(folder / f"{split}-images-idx3-ubyte.gz", 3, name)
        labels = _read_idx(folder / f"{split}-labels-idx1-ubyte.gz", 1, name)
        if len(pixels) != len(labels) or not len(labels) or labels.max() >= len(classes):
            found = f"{len(pixels)} images and {len(labels)} labels of {split}"
            raise ValueError(f"--data: {folder} cannot be used: {found}")
        parts.append(Arrays(pixels, labels))
    return _gray(name, *parts, classes)


def _read_idx(path: Path, dimensions: int, name: str) -> np.ndarray:
    if not path.is_file():
        how = " (on Debian: apt-get install dataset-fashion-mnist)" if name == FASHION else ""
        raise ValueError(f"--data: got {name!r}, but there is no {path}{how}")
    try:
        content = gzip.decompress(path.read_bytes())
        if content[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"no idx file of bytes in {dimensions} dimensions")
        shape = np.frombuffer(content, ">i4", dimensions, 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"--data: {path} is damaged ({error})") from error


def _gray(name: str, train: Arrays, val: Arrays, classes: list[str]) -> ImageData:
    values = train.pixels / 255
    digest = hashlib.sha256()
    for part in (train, val):
        digest.update(part.pixels.tobytes() + bytes(part.targets))
    size, mean, std = train.pixels.shape[1], (float(values.mean()),), (float(values.std()),)
    return ImageData(name, train, val, classes, size, 1, mean, std, digest.hexdigest())


def _colored(name: str, train: Pictures, val: Pictures, classes: list[str], fingerprint: str) -> ImageData:
    mean, std = tuple(IMAGENET_DEFAULT_MEAN), tuple(IMAGENET_DEFAULT_STD)
    return ImageData(name, train, val, classes, None, 3, mean, std, fingerprint)


def _folder(name: str) -> ImageData:
    """ImageNet's layout: train/<class>/… and val/<class>/…, images of any size and kind that PIL reads."""
    root = expand_path(name)
    held_out = next((name for name in ("val", "validation") if (root / name).is_dir()), "val")
    splits = [root / "train", root / held_out]
    missing = [str(path) for path in splits if not path.is_dir()]
    if missing:
        takes = f"{DIGITS}, {FASHION}, {HUB}NAME or a folder with train/ and val/"
        raise ValueError(f"--data: got {name!r}, expected {takes} ({', '.join(missing)} not there)")
    classes, labels = (sorted(entry.name for entry in os.scandir(path) if entry.is_dir()) for path in splits)
    if unknown := sorted({*labels} - {*classes}):
        raise ValueError(f"--data: {splits[1]} has classes that {splits[0]} lacks: {first_few(unknown)}")
    numbers = {c: i for i, c in enumerate(classes)}
    train, val = (Files(root, find_images_and_targets(str(path), class_to_idx=numbers)[0]) for path in splits)
    filled = set(train.targets)
    empty = [c for c, i in numbers.items() if i not in filled]
    if empty or not val.paths:
        what = f"no images of {first_few(empty)}" if empty else f"no images in {splits[1]}"
        raise ValueError(f"--data: {root} cannot be used: {what}")
    listing = "\n".join([*classes, *(f"{p.name(i)} {t}" for p in (train, val) for i, t in enumerate(p.targets))])
    fingerprint = hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()
    return _colored(root.resolve().name, train, val, classes, fingerprint)


def _hub(name: str) -> ImageData:
    """A dataset of the hub, or one that the datasets library saved to a folder."""
    import datasets

    try:
        tables = datasets.load_from_disk(name) if Path(name).is_dir() else datasets.load_dataset(name)
        train = tables["train"]
        val = next(tables[split] for split in ("validation", "val", "test") if split in tables)
        features = train.features.items()
        image = next(column for column, kind in features if isinstance(kind, datasets.Image))
        label, kind = next((c, kind) for c, kind in features if isinstance(kind, datasets.ClassLabel))
    except (OSError, ValueError, KeyError, StopIteration, datasets.exceptions.DatasetsError) as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        takes = "a dataset with train and validation, a column of images and one of class labels"
        raise ValueError(f"--data: got {HUB + name!r}, expected {takes} ({why})") from error
    parts = (Rows(table, image, label) for table in (train, val))
    return _colored(Path(name).name, *parts, kind.names, f"{train._fingerprint} {val._fingerprint}")


# ---- batches ----


@dataclass(frozen=True)
class ImageBatch:
    """inputs (B, channels, size, size); targets (B,) int64, −1 where there is none; the numbers of `damaged` images."""

    inputs: Tensor
    targets: Tensor
    damaged: list[int]
    weight: float = 1.0  # of its loss
    state: dict | None = None  # of the loader after it


class Prepared(Dataset):
    """Images as the model takes them, by (place in the epoch, number); `shape` of one of them.

    `key`, with the place, seeds the draws, and a damaged image is replaced with the next one. None, for a measurement:
    no draws, and a damaged image has no target.
    """

    def __init__(
        self, pictures: Pictures, transform: Transform, shape: tuple[int, ...], key: tuple[int, ...] | None
    ) -> None:
        self.pictures, self.transform, self.shape, self.key = pictures, transform, shape, key

    def __getitem__(self, drawn: tuple[int, int]) -> tuple[Tensor, int, int]:
        place, index = drawn
        if self.key is not None:
            seed_everything(*self.key, place)
        damaged, count = -1, len(self.pictures.targets)
        for offset in range(1 if self.key is None else MOST_TRIES):
            try:
                picture = self.pictures.open((index + offset) % count)
            except UNREADABLE:
                damaged = index
                continue
            return self.transform(picture), self.pictures.targets[(index + offset) % count], damaged
        if self.key is None:
            return torch.zeros(self.shape), -1, damaged
        raise ValueError(f"--data: {MOST_TRIES} images from {self.pictures.name(index)} on cannot be read")


def seed_everything(*key: int) -> None:
    """Seed the generators of Python, numpy and torch's CPU by several numbers."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


def draw_epoch(length: int, settings: VisionSettings, epoch: int, rank: int, ranks: int) -> list[int]:
    """Numbers of the images that a rank learns from in an epoch, in order: timm's sampler of repeated augmentation."""
    rounded = 256 if settings.repeats > 1 and length >= 256 else 0  # DeiT's
    sampler = RepeatAugSampler(range(length), ranks, rank, num_repeats=settings.repeats, selected_round=rounded)
    sampler.set_epoch(int(np.random.SeedSequence((settings.seed, epoch)).generate_state(1)[0]))
    return list(sampler)


def train_transform(data: ImageData, settings: VisionSettings, size: int) -> Transform:
    """timm's transforms of DeiT's recipe. Raises ValueError if timm knows no such policy of augmentation."""
    policy = None if settings.auto_augment == "none" else settings.auto_augment
    try:
        transform = create_transform(
            (data.channels, size, size),
            is_training=True,
            scale=(settings.crop_scale, 1.0),
            hflip=settings.hflip,
            color_jitter=0.3 if data.channels == 3 else None,
            auto_augment=policy,
            interpolation="bicubic",
            mean=data.mean,
            std=data.std,
            re_prob=settings.random_erasing,
            re_mode="pixel",
        )
    except (AssertionError, KeyError, ValueError, IndexError) as error:
        takes = "none or timm's name of a policy, such as rand-m9-mstd0.5-inc1"
        raise ValueError(f"--auto-augment: got {policy!r}, expected {takes}") from error
    for step in transform.transforms:
        policies = [step.ops] if isinstance(step, RandAugment) else getattr(step, "policy", ())
        for operation in (operation for part in policies for operation in part):
            if operation.aug_fn is posterize:
                operation.aug_fn = _posterize
    return transform


def _posterize(picture: Image.Image, bits: int, **options: object) -> Image.Image:
    """timm's, and a black picture for 0 bits, as before Pillow 13 refused them: rand-m9-mstd0.5-inc1 asks for them."""
    return posterize(picture, bits, **options) if bits else picture.point(lambda _: 0)


def val_transform(data: ImageData, size: int) -> Transform:
    """timm's: resized and cropped at the center; whole where all images have one size."""
    shape, share = (data.channels, size, size), 0.9 if data.size is None else 1.0
    return create_transform(shape, interpolation="bicubic", mean=data.mean, std=data.std, crop_pct=share)


def load(
    prepared: Prepared, drawn: Sequence[tuple[int, int]], batch: int, workers: int, whole: bool
) -> Iterator[ImageBatch]:
    """Batches of the drawn images; if `whole`, without a last one that is smaller."""
    options = {"num_workers": workers, "drop_last": whole, "pin_memory": torch.cuda.is_available()}
    for images, labels, damaged in DataLoader(prepared, batch, sampler=drawn, **options):
        yield ImageBatch(images, labels, [index for index in damaged.tolist() if index >= 0])
