"""Studies: families of models trained at several sizes with several seeds, their results and what these say."""
