"""Optimizer rules, implemented a second time in plain PyTorch, under the names of the files in `optim/rules`."""
