"""Registers our models with timm.

    import nanogka.vision.models
    timm.create_model("deit_tiny_gka_patch16_224", num_classes=10, img_size=64, drop_path_rate=0.1)

`deit_{tiny,small,base}_{gka,gka_affine,vlt}_patch16_224` are timm's DeiT models with another attention layer.
`deit_micro_patch4_28` and its variants are small enough to train on a laptop. None has pretrained weights.
"""

from collections.abc import Callable

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import Attention
from timm.models import VisionTransformer, build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from nanogka.vision.attention import AffineGaussianAttention, GaussianAttention, ValuelessAttention

ATTENTION: dict[str, type[nn.Module]] = {
    "gka": GaussianAttention,
    "gka_affine": AffineGaussianAttention,
    "vlt": ValuelessAttention,
    "": Attention,
}
SIZES = {  # table 1 of DeiT, and a small one of ours for images of 28 × 28 pixels
    "tiny": {"patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 3, "img_size": 224},
    "small": {"patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6, "img_size": 224},
    "base": {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12, "img_size": 224},
    "micro": {"patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4, "img_size": 28, "in_chans": 1},
}


def model_name(size: str, attention: str) -> str:
    """timm's name of a size in `SIZES` with an attention in `ATTENTION`; "" is timm's own attention."""
    shape = SIZES[size]
    variant = f"_{attention}" if attention else ""
    return f"deit_{size}{variant}_patch{shape['patch_size']}_{shape['img_size']}"


def _entry(name: str, size: str, attention: str) -> Callable[..., VisionTransformer]:
    def create(pretrained: bool = False, **options: object) -> VisionTransformer:
        options = SIZES[size] | {"attn_layer": ATTENTION[attention]} | options
        features = {"out_indices": options.pop("out_indices", 3), "feature_cls": "getter"}
        return build_model_with_cfg(VisionTransformer, name, pretrained, feature_cfg=features, **options)

    create.__name__ = create.__qualname__ = name  # timm registers a function by its name
    create.__doc__ = f"DeiT-{size} with {ATTENTION[attention].__name__}; no pretrained weights."
    return create


def _config(size: str) -> dict:
    pixels, channels = SIZES[size]["img_size"], SIZES[size].get("in_chans", 3)
    return {
        "input_size": (channels, pixels, pixels),
        "num_classes": 1000 if channels == 3 else 10,
        "mean": IMAGENET_DEFAULT_MEAN if channels == 3 else (0.5,),
        "std": IMAGENET_DEFAULT_STD if channels == 3 else (0.5,),
        "interpolation": "bicubic",
        "crop_pct": 0.9 if channels == 3 else 1.0,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }


# timm has its own deit_{tiny,small,base}_patch16_224.
NAMES = {model_name(size, name): (size, name) for size in SIZES for name in ATTENTION if name or size == "micro"}
default_cfgs = generate_default_cfgs({name: _config(size) for name, (size, _) in NAMES.items()})
for _name, _parts in NAMES.items():
    register_model(_entry(_name, *_parts))
