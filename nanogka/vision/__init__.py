"""Images: DeiT with Gaussian Kernel Attention, built on timm (`pip install -e '.[vision]'`).

Shapes: B images, T tokens (one [CLS] token, then the patches row by row), C width, H heads, D = C / H.
"""
