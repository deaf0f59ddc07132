"""Each optimizer rule a second time, plainly, under the name of its file in `optim/rules`."""
