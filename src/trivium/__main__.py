"""`python -m trivium`, and so `torchrun … -m trivium train`: the command line."""

from trivium.cli.main import main

main()
