import numpy as np
import pytest

from trivium.errors import ConfigError, DataError
from trivium.planner.stack_file import learn, read_stack, write_stack


def predicted(sequences):
    return 0.1 + 0.01 * sequences


def run_of(factor, *, steps=60, noise=0.0, stalls=0):
    """Metrics as the trainer writes them, of a system `factor` times as slow as predicted."""
    random = np.random.default_rng(1)
    rows = []
    for step in range(steps):
        sequences = 32 if step < steps // 3 else 64
        seconds = factor * predicted(sequences) * float(np.exp(noise * random.standard_normal()))
        rows.append({"step": step + 1, "sequences": sequences, "seconds": seconds, "loss": 1.0})
        rows.append({"step": step + 1, "validation_loss": 1.0})
    for n in range(stalls):
        rows[2 * (10 + n)]["seconds"] *= 50
    rows[0]["seconds"] *= 20  # the first step warms up
    return rows


def learned(rows):
    return learn(rows, predicted, machine="m", run="r")


@pytest.mark.parametrize("factor", [0.7, 1.0, 1.18, 3.0])
def test_the_factor_of_a_synthetic_run_is_found_through_its_ramp(factor):
    found = learned(run_of(factor))
    assert found.factor == pytest.approx(factor) and found.spread == pytest.approx(0)


def test_noise_widens_the_spread_and_stalls_move_nothing():
    noisy = learned(run_of(1.3, noise=0.1))
    assert noisy.factor == pytest.approx(1.3, rel=0.05) and 0.03 < noisy.spread < 0.15
    stalled = learned(run_of(1.3, noise=0.1, stalls=6))
    assert stalled.factor == pytest.approx(1.3, rel=0.06)


def test_a_run_of_few_steps_teaches_nothing():
    with pytest.raises(DataError, match="at least 5"):
        learned(run_of(1.0, steps=4))


def test_the_file_gives_back_what_was_learned(tmp_path):
    found = learned(run_of(1.2, noise=0.05))
    write_stack(tmp_path / "stack.yaml", found)
    assert read_stack(tmp_path / "stack.yaml") == found


@pytest.mark.parametrize("factor", [1e-300, 1e300])
def test_a_factor_that_no_run_can_teach_is_refused_by_its_field(tmp_path, factor):
    write_stack(tmp_path / "stack.yaml", learned(run_of(1.2)).model_copy(update={"factor": factor}))
    with pytest.raises(ConfigError, match=r"factor is 1e.300; it must be"):
        read_stack(tmp_path / "stack.yaml")


@pytest.mark.parametrize(("field", "value", "bound"), [("low", 3.0, "most"), ("high", 1.0, "least")])
def test_a_quartile_on_the_wrong_side_of_the_factor_is_refused(tmp_path, field, value, bound):
    crossed = {"factor": 2.0, "low": 1.0, "high": 3.0, field: value}
    write_stack(tmp_path / "stack.yaml", learned(run_of(1.2)).model_copy(update=crossed))
    with pytest.raises(ConfigError, match=f"{field} is {value:g}.*must be at {bound} the factor, 2,"):
        read_stack(tmp_path / "stack.yaml")


@pytest.mark.parametrize("text", ["- 1", "factor: -1", "factor: [", "speed: 3"])
def test_a_file_that_is_no_stack_is_refused(tmp_path, text):
    (tmp_path / "stack.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_stack(tmp_path / "stack.yaml")
    assert all(str(tmp_path / "stack.yaml") in line for line in str(caught.value).splitlines())
