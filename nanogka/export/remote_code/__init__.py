"""Files that an exported model carries, copied as they are: they import torch, transformers and each other alone."""
