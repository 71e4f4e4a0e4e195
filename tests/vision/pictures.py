"""Folders of small pictures in ImageNet's layout."""

import numpy as np
from PIL import Image


def make_folder(root, classes=("cat", "dog"), train=8, val=3, seed=0):
    """Write pictures of a few sizes and kinds, and one color per class."""
    draw = np.random.RandomState(seed)
    for split, count in (("train", train), ("val", val)):
        for label, name in enumerate(classes):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                height, width = draw.randint(20, 60, size=2)
                pixels = draw.randint(0, 120, size=(height, width, 3))
                pixels[..., label % 3] += 120
                picture = Image.fromarray(pixels.astype(np.uint8))
                kind = ("RGB", "L", "P", "RGBA")[number % 4]
                picture.convert(kind).save(folder / f"{number:03d}.png")
    return root
