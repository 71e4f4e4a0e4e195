"""Pictures: what is drawn is drawn by seed, epoch, rank and place alone; damage is counted; sources are checked."""

import gzip
import shutil
import struct

import numpy as np
import pytest
import torch

pytest.importorskip("timm")

from pictures import make_folder  # noqa: E402
from timm.data.auto_augment import RandAugment  # noqa: E402

from nanogka.vision import data as module  # noqa: E402
from nanogka.vision.data import (  # noqa: E402
    Prepared,
    draw_epoch,
    load,
    open_idx,
    open_image_data,
    train_transform,
    val_transform,
)
from nanogka.vision.settings import VisionSettings  # noqa: E402

SIZE = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("pictures") / "pets")


@pytest.fixture
def copied(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "pets")
    return tmp_path / "pets"


def settings_of(folder, **options):
    return VisionSettings(data=str(folder), **options).with_recipe()


def drawn_images(data, settings, drawn, workers=0):
    transform = train_transform(data, settings, SIZE)
    prepared = Prepared(data.train, transform, (3, SIZE, SIZE), (settings.seed, 1, 0, 0))
    return [batch.inputs for batch in load(prepared, drawn, 2, workers, whole=True)]


def test_an_image_is_drawn_alike_by_any_worker_and_from_any_beginning(folder):
    data, settings = open_image_data(str(folder)), settings_of(folder)
    drawn = list(enumerate(draw_epoch(len(data.train.targets), settings, 0, 0, 1)))
    whole = drawn_images(data, settings, drawn)
    torch.manual_seed(7)  # whatever the generators were before
    assert all(map(torch.equal, drawn_images(data, settings, drawn[4:], workers=1), whole[2:]))


def test_augmentation_of_every_strength_gives_a_picture(folder):
    """At its highest strength RandAugment keeps 0 bits of a channel, which Pillow refuses."""
    data = open_image_data(str(folder))
    transform = train_transform(data, settings_of(folder, auto_augment="rand-m10-inc1"), SIZE)
    (policy,) = (step for step in transform.transforms if isinstance(step, RandAugment))
    (operation,) = (operation for operation in policy.ops if operation.name == "PosterizeIncreasing")
    operation.prob = 1.0
    assert not np.asarray(operation(data.train.open(0))).any()


def test_ranks_and_epochs_share_the_images(folder):
    settings = settings_of(folder, repeats=1)
    ranks = [draw_epoch(17, settings, 0, rank, 2) for rank in (0, 1)]
    assert [len(rank) for rank in ranks] == [9, 9]
    assert {*ranks[0], *ranks[1]} == set(range(17))
    assert draw_epoch(17, settings, 0, 0, 2) == ranks[0] != draw_epoch(17, settings, 1, 0, 2)


def test_a_damaged_image_is_replaced_in_training_left_out_of_a_measurement_and_counted(copied):
    (copied / "train" / "cat" / "000.png").write_bytes(b"no picture")
    cut = (copied / "train" / "cat" / "001.png").read_bytes()
    (copied / "train" / "cat" / "001.png").write_bytes(cut[: len(cut) // 2])
    data = open_image_data(str(copied))
    assert data.train.name(0) == "train/cat/000.png"
    (batch,) = load(
        Prepared(data.train, val_transform(data, SIZE), (3, SIZE, SIZE), (0,)), [(0, 0), (1, 2)], 2, 0, True
    )
    assert batch.damaged == [0]
    assert torch.equal(batch.inputs[0], batch.inputs[1])  # both number 2, the next that is sound
    (batch,) = load(
        Prepared(data.train, val_transform(data, SIZE), (3, SIZE, SIZE), None), [(0, 1), (1, 2)], 2, 0, False
    )
    assert (batch.targets.tolist(), batch.damaged) == ([-1, 0], [1])


def test_what_is_wrong_with_a_folder_is_said(copied):
    (copied / "train" / "eel").mkdir()
    with pytest.raises(ValueError, match="pets cannot be used: no images of eel"):
        open_image_data(str(copied))
    (copied / "val" / "fox").mkdir()
    with pytest.raises(ValueError, match="val has classes that .*train lacks: fox"):
        open_image_data(str(copied))
    shutil.rmtree(copied / "val")
    with pytest.raises(ValueError, match="--data: got '.*pets', expected digits, .*val not there"):
        open_image_data(str(copied))


def write_idx(path, values):
    shape = struct.pack(f">{values.ndim}i", *values.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, values.ndim]) + shape + values.astype(np.uint8).tobytes()))


def test_idx_files_are_read_and_damaged_ones_named(tmp_path):
    draw = np.random.RandomState(0)
    pixels, labels = draw.randint(0, 256, size=(6, 5, 5)), np.arange(6) % 3
    for split in ("train", "t10k"):
        write_idx(tmp_path / f"{split}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{split}-labels-idx1-ubyte.gz", labels)
    data = open_idx(tmp_path, "small", ["a", "b", "c"])
    np.testing.assert_array_equal(np.asarray(data.val.open(4)), pixels[4])
    assert (data.train.targets, data.size) == ([0, 1, 2, 0, 1, 2], 5)
    assert data.mean == pytest.approx([pixels.mean() / 255])
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", labels[:5])
    with pytest.raises(ValueError, match="6 images and 5 labels of t10k"):
        open_idx(tmp_path, "small", ["a", "b", "c"])
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match="train-images-idx3-ubyte.gz is damaged"):
        open_idx(tmp_path, "small", ["a", "b", "c"])


def test_a_saved_dataset_of_the_datasets_library_is_the_folder_it_was_made_of(folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    plain = open_image_data(str(folder))
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=plain.classes)})
    splits = {
        name: datasets.Dataset.from_dict({"image": part.paths, "label": part.targets}, features=features)
        for name, part in (("train", plain.train), ("validation", plain.val))
    }
    datasets.DatasetDict(splits).save_to_disk(tmp_path / "saved")
    data = open_image_data(f"{module.HUB}{tmp_path / 'saved'}")
    assert (data.classes, data.train.targets) == (plain.classes, plain.train.targets)
    np.testing.assert_array_equal(np.asarray(data.val.open(1)), np.asarray(plain.val.open(1)))
    with pytest.raises(ValueError, match="--data"):
        open_image_data(f"{module.HUB}{tmp_path}")
