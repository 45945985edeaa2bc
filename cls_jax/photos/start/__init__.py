"""How a run begins from pretrained weights, and how it ends: labels and heads from features."""
