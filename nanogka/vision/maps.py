"""Attention of a vision transformer over an image: A of every layer, and the figures of it in a run's report.

Shapes: L layers.
"""

from pathlib import Path

import timm.layers
import torch
from PIL import Image
from timm.models import VisionTransformer
from torch import Tensor, nn

from nanogka.common.files import expand_path, open_regular
from nanogka.vision.attention import ImageAttention
from nanogka.vision.data import UNREADABLE, open_image_data, val_transform
from nanogka.vision.figures import draw_maps
from nanogka.vision.report import write_image_report
from nanogka.vision.run import TrainedImageModel


def attention_weights(layer: nn.Module, x: Tensor) -> Tensor:
    """A (B, H, T, T) of an attention layer, ours or timm's, from its input x (B, T, C), in the dtype of x."""
    if isinstance(layer, ImageAttention):
        return layer.weights(x)
    if not isinstance(layer, timm.layers.Attention):
        raise ValueError(f"attention: got {type(layer).__name__}, expected a layer of ours or timm's Attention")
    q, k, _ = layer.qkv(x).unflatten(-1, (3, layer.num_heads, layer.head_dim)).permute(2, 0, 3, 1, 4)
    return (layer.q_norm(q) @ layer.k_norm(k).transpose(-2, -1) * layer.scale).softmax(-1)


@torch.no_grad()
def capture_attention(model: VisionTransformer, images: Tensor) -> Tensor:
    """A (L, B, H, T, T), float32 on the CPU, of images (B, channels, height, width) as the model takes them."""
    caught: list[Tensor] = []

    def catch(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        caught.append(attention_weights(layer, inputs[0].float()).cpu())

    handles = [block.attn.register_forward_pre_hook(catch) for block in model.blocks]
    try:
        model(images)
    finally:
        for handle in handles:
            handle.remove()
    return torch.stack(caught)


@torch.no_grad()
def illustrate(trained: TrainedImageModel, number: int = 0, file: str = "", folder: Path | None = None) -> list[Path]:
    """Draw the maps of a held-out image, or of a file, into `folder` (None: maps/ of the run); renew the run's report.

    Returns the paths of the figures and of the report.
    """
    data = open_image_data(trained.config["settings"]["data"])
    count = len(data.val.targets)
    if not file and not number < count:
        raise ValueError(f"--number: got {number}, expected 0 to {count - 1}, the held-out images")
    try:
        if file:
            with open_regular(expand_path(file)) as source, Image.open(source) as opened:
                picture = opened.convert("RGB" if data.channels == 3 else "L")
        else:
            picture = data.val.open(number)
    except UNREADABLE as error:
        what = f"--image: got {file!r}" if file else f"--number: got {number}"
        raise ValueError(f"{what}, which cannot be read ({' '.join(str(error).split())})") from error
    image = val_transform(data, trained.config["model"]["img_size"])(picture)
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    shown = (image * std + mean).clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()
    truth = "" if file else f", {data.classes[data.val.targets[number]]}"
    answer = data.classes[int(trained.model(image[None]).argmax())]
    name = f"{Path(file).name if file else data.val.name(number)}{truth}, taken for {answer}"
    weights = capture_attention(trained.model, image[None])[:, 0]
    drawn = draw_maps(trained.model, weights, shown, name, folder or trained.folder / "maps")
    return [*drawn, write_image_report(trained.folder)]
