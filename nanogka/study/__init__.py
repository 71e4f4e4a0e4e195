"""Studies: train families of models at several sizes and seeds, keep the results and report them."""
