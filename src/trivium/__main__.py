"""Entry point of `trivium` and of `python -m trivium`, and thereby of `torchrun … -m trivium train`."""

try:
    from trivium.cli.main import main
except KeyboardInterrupt:  # Ctrl-C while the command line is imported
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
