"""Attention weights of a forward pass, and the figures and the page that show them."""
