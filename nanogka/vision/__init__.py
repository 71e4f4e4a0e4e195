"""Images: DeiT with Gaussian Kernel Attention, on timm. Takes the extra `vision`: timm and scikit-learn.

`attention` is the layer, `models` the names that `timm.create_model` knows once it is imported, `accounting` the
paper's table of costs. The rest trains and looks: `settings`, `data`, `run`, `loop`, `evaluate`, `maps`.

Shapes: B images, T tokens ([CLS], then the patches by rows), C width, H heads, D = C / H.
"""

from nanogka.vision.torchvision_operators import declare_operators

declare_operators()
