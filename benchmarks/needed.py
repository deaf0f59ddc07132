"""Name the packages that this Python lacks, before an import fails.

python benchmarks/needed.py PACKAGE [PACKAGE …]        exit code 3 if a package is missing
"""

import importlib.util
import sys

MODULES = {"PyYAML": "yaml", "pytest-timeout": "pytest_timeout"}  # by package, where the names differ


def require(*packages: str) -> None:
    """Exit with code 3, saying how to install them with and without a network, if packages are missing."""
    lacking = [package for package in packages if importlib.util.find_spec(MODULES.get(package, package)) is None]
    if not lacking:
        return
    names, python = " ".join(lacking), "{}.{}".format(*sys.version_info)
    print(
        f"error: {sys.executable} lacks {' and '.join(lacking)}; pip install {names}. Without a network: elsewhere, "
        f"pip download -d wheels --only-binary=:all: --python-version {python} {names}; then here, "
        f"pip install --no-index --find-links wheels --target site {names}, and set PYTHONPATH=site",
        file=sys.stderr,
    )
    sys.exit(3)


if __name__ == "__main__":
    require(*sys.argv[1:])
