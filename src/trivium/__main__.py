"""Entry point of `python -m trivium`, and thereby of `torchrun … -m trivium train`."""

from trivium.cli.main import main

main()
