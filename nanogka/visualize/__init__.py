"""Pictures of what the heads learned: attention weights caught in a forward pass, figures and a page made of them."""
