"""torchvision's operators, declared before a test imports timm."""

import nanogka.vision  # noqa: F401
