"""The models by the names that `timm.create_model` takes; importing this module registers them.

    import nanogka.vision.models
    timm.create_model("deit_tiny_gka_patch16_224", num_classes=10, img_size=64, drop_path_rate=0.1)

`deit_{tiny,small,base}_{gka,gka_affine,vlt}_patch16_224` are timm's DeiT with another attention layer, and stand beside
its own `deit_tiny_patch16_224` and so on. `deit_micro_patch2_8` and its variants are small enough for a laptop and
images of 8 × 8. timm reserves what follows a dot in a name for weights: the attention is part of the name before it.
"""

import math
from collections.abc import Callable

import timm
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import Attention
from timm.models import VisionTransformer, build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from nanogka.vision.attention import AffineGaussianAttention, GaussianAttention, ValuelessAttention
from nanogka.vision.data import ImageData
from nanogka.vision.settings import VisionSettings

ATTENTION: dict[str, type[nn.Module]] = {"gka": GaussianAttention, "gka_affine": AffineGaussianAttention}
ATTENTION |= {"vlt": ValuelessAttention, "": Attention}
SIZES = {  # DeiT's table 1, and ours
    "tiny": {"patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12},
    "micro": {"patch_size": 2, "embed_dim": 64, "depth": 4, "num_heads": 4, "in_chans": 1, "num_classes": 10},
}
IMAGE_SIZES = {"micro": 8}


def model_name(size: str, attention: str) -> str:
    """The name of a size with an attention of `ATTENTION`; with "", timm's own."""
    patch, pixels = SIZES[size]["patch_size"], IMAGE_SIZES.get(size, 224)
    return "_".join(["deit", size, *([attention] if attention else []), f"patch{patch}", str(pixels)])


def _entry(name: str, size: str, attention: str) -> Callable[..., VisionTransformer]:
    def create(pretrained: bool = False, **options: object) -> VisionTransformer:
        shape = {**SIZES[size], "img_size": IMAGE_SIZES.get(size, 224), "attn_layer": ATTENTION[attention]}
        features = {"out_indices": options.pop("out_indices", 3), "feature_cls": "getter"}
        return build_model_with_cfg(VisionTransformer, name, pretrained, feature_cfg=features, **{**shape, **options})

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"DeiT, size {size}, attention {attention or 'softmax'}; no trained weights."
    return create


def _configuration(size: str) -> dict:
    pixels, channels = IMAGE_SIZES.get(size, 224), SIZES[size].get("in_chans", 3)
    return {
        "input_size": (channels, pixels, pixels),
        "num_classes": SIZES[size].get("num_classes", 1000),
        "mean": IMAGENET_DEFAULT_MEAN if channels == 3 else (0.5,),
        "std": IMAGENET_DEFAULT_STD if channels == 3 else (0.5,),
        "interpolation": "bicubic",
        "crop_pct": 0.9,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


OURS = {model_name(s, a): (s, a) for s in SIZES for a in ATTENTION if a or s == "micro"}
default_cfgs = generate_default_cfgs({name: _configuration(size) for name, (size, _) in OURS.items()})
for _name, _of in OURS.items():
    register_model(_entry(_name, *_of))


OPTIONS = ("name", "img_size", "patch_size", "in_chans", "num_classes", "drop_path_rate", "bandwidth_init")


def model_options(settings: VisionSettings, data: ImageData) -> dict:
    """Arguments of `build_model`, fit for config.yaml."""
    return {
        "name": settings.model,
        "img_size": settings.img_size or data.size or 224,
        "patch_size": settings.patch_size,
        "in_chans": data.channels,
        "num_classes": len(data.classes),
        "drop_path_rate": settings.drop_path,
        "bandwidth_init": settings.bandwidth_init,
    }


def build_model(options: dict, device: torch.device | str = "cpu") -> VisionTransformer:
    """The network of `model_options`, with weights drawn from torch's generator."""
    options = {name: value for name, value in options.items() if value is not None}
    if unknown := sorted(options.keys() - OPTIONS):  # timm's own would read any file, or fetch one
        raise ValueError(f"--model: got the options {', '.join(unknown)}, expected {', '.join(OPTIONS)}")
    name, start = options.pop("name"), options.pop("bandwidth_init", None)
    if not timm.is_model(name):
        near = ", ".join(timm.list_models("deit*gka*"))
        raise ValueError(f"--model: got {name!r}, expected a vision transformer by timm's name: {near}, …")
    try:
        with torch.device(device):
            model = timm.create_model(name, **options)
    except (TypeError, RuntimeError, AssertionError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"--model: got {name!r}, which timm cannot make with {options}: {why}") from error
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"--model: got {name!r}, expected a vision transformer, not {type(model).__name__}")
    pixels, patch = options["img_size"], model.patch_embed.patch_size[0]
    if pixels % patch:
        raise ValueError(f"--img-size: got {pixels}, expected a multiple of the patch, {patch}")
    if start is not None:
        with torch.no_grad():
            for layer in model.modules():
                if isinstance(layer, GaussianAttention):
                    layer.log_bandwidth.fill_(math.log(start))
    return model
