"""Train a recipe with several seeds, and write the band of its curves.

python benchmarks/recipe_band.py books-small --data input.txt --seeds 1 2 3 4 5 --out runs/bands
"""

import argparse
import sys
from pathlib import Path

from circumstances import circumstances

from trivium.cli.options import open_run
from trivium.cli.recipes import CURVE, STAGES
from trivium.cli.run_config import Given
from trivium.cli.stage import perform
from trivium.cli.train import TRAIN
from trivium.provenance import write_json
from trivium.recipes.band import band_of
from trivium.recipes.curve import curve_of
from trivium.recipes.recipe import folder_of, settings_of
from trivium.untrusted import read_json


def main() -> None:
    """Train every seed that has no curve yet, without its evaluation; then write band.json into the recipe's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    curves = []
    for seed in given.seeds:
        curve = given.out / f"seed-{seed}" / CURVE
        if not curve.is_file():
            settings = Given(str(settings_of(given.recipe)), (f"seed={seed}",))
            run = open_run(curve.parent, settings, corpus=given.data)
            for stage in STAGES[: STAGES.index(TRAIN) + 1]:
                perform(stage, run)
            write_json(curve, curve_of(curve.parent, given.recipe, None))
        curves.append(read_json(curve))
    about = circumstances("benchmarks/recipe_band.py", sys.argv[1:])
    write_json(folder_of(given.recipe) / "band.json", band_of(curves) | {"date": about["date"][:10], "measured": about})


if __name__ == "__main__":
    main()
