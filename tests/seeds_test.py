"""Laws of randomness: a name gives its seed, everywhere and always."""

import subprocess
import sys

import numpy as np

from trivium.seeds import generator_for, seed_for


def test_equal_names_give_equal_streams_and_different_names_different_ones():
    draws = [generator_for(7, "weights", n).integers(1 << 62, size=4).tolist() for n in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


def test_names_are_not_glued_together():
    assert (
        len({seed_for(1, "ab", "c"), seed_for(1, "a", "bc"), seed_for(1, "abc"), seed_for(11, "ab", "c")})
        == 4
    )


def test_the_root_seed_changes_every_choice():
    assert seed_for(1, "x") != seed_for(2, "x")


def test_seeds_fit_torch_and_numpy():
    seeds = [seed_for(0, n) for n in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_seed_is_the_same_in_every_process_and_version():
    code = "from trivium.seeds import seed_for; print(seed_for(1234, 'blend', 5))"
    elsewhere = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert int(elsewhere) == seed_for(1234, "blend", 5) == 7855983285801475624


def test_the_stream_is_uniform():
    sample = generator_for(3, "uniform").random(20_000)
    assert abs(float(np.mean(sample)) - 0.5) < 0.01
