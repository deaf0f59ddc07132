"""Run a recipe with several seeds, and write the band of its curves.

python benchmarks/recipe_band.py books-small --data input.txt --seeds 1 2 3 4 5 --out runs/bands
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from circumstances import circumstances

from trivium.provenance import write_json
from trivium.recipes.band import band_of
from trivium.recipes.recipe import folder_of


def main() -> None:
    """Run every seed that has no curve yet; then write band.json into the recipe's folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe")
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    curves = []
    for seed in given.seeds:
        run = given.out / f"seed-{seed}"
        words = ["recipes", "run", given.recipe, "--data", given.data, "--out", str(run), "--set", f"seed={seed}"]
        if not (run / "curve.json").is_file():
            subprocess.run([sys.executable, "-m", "trivium", *words], check=True)
        curves.append(json.loads((run / "curve.json").read_text()))
    about = circumstances("benchmarks/recipe_band.py", sys.argv[1:])
    write_json(folder_of(given.recipe) / "band.json", band_of(curves) | {"date": about["date"][:10], "measured": about})


if __name__ == "__main__":
    main()
