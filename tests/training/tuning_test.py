"""The settings that follow from the method, the conversations and the model of a tuning."""

import pytest
import torch

from plans import small
from trivium.config import build, merge, to_tree
from trivium.errors import ConfigError
from trivium.plan.adapters import adapter_kinds
from trivium.plan.batch import Batch
from trivium.plan.plan import Plan
from trivium.training.config import TrainingConfig
from trivium.training.rates import lr_of_step, rate_problems
from trivium.training.tuning import (
    ADAPTER_LR,
    ADAPTER_PAIRS_LR,
    CONVERSATIONS_PER_STEP,
    DEFAULT_SEQUENCE_TOKENS,
    FULL_LR,
    FULL_PAIRS_LR,
    MICRO_TOKENS,
    WARMUP_SHARE,
    Method,
    Size,
    course_for,
    length_for,
    method_named,
    methods,
    micro_for,
    sequences_for,
    settings_for,
    steps_for,
)

ROTARY = {"positions": "rotary", "sequence": 4096}


def test_every_kind_of_adapter_is_a_method_beside_full() -> None:
    assert {*adapter_kinds(), "full"} <= methods().keys()


@pytest.mark.parametrize("objective", ["", "dpo"])
@pytest.mark.parametrize("trains", methods())
def test_a_method_freezes_all_but_its_adapters_and_has_its_own_rate(trains: str, objective: str) -> None:
    method = method_named(",".join(filter(None, (trains, objective))))
    assert method == Method(trains, objective or "next_token")
    settings = settings_for(method)
    plan = build(Plan, merge(to_tree(small()), settings["plan"])).checked()
    assert bool(plan.model.adapters) == (trains != "full")
    training = build(TrainingConfig, settings["training"])
    rates = (FULL_PAIRS_LR, ADAPTER_PAIRS_LR) if objective else (FULL_LR, ADAPTER_LR)
    assert training.lr == rates[trains != "full"]
    assert training.objective.problems(plan.model) == []


def test_an_objective_alone_tunes_adapters() -> None:
    assert method_named("ipo") == Method("lora", "ipo")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fulll", "there is no method 'fulll'; did you mean 'full'"),
        ("full,", "there is no method ''"),
        ("full,dpo,ipo", "dpo and ipo exclude each other"),
    ],
)
def test_a_method_that_does_not_exist_is_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=f"--method {text}: {says}"):
        method_named(text)


@pytest.mark.parametrize(
    ("longest", "length"), [(50, DEFAULT_SEQUENCE_TOKENS), (2048, 2048), (2049, 4096), (9000, 4096)]
)
def test_a_sequence_holds_the_longest_conversation_or_what_the_model_reads(longest: int, length: int) -> None:
    assert length_for(longest, small(model=ROTARY).model) == length


def test_a_model_with_learned_positions_keeps_its_length() -> None:
    assert length_for(3, small().model) == 8


@pytest.mark.parametrize("conversations", [1, 10, 1000, 100_000])
@pytest.mark.parametrize("per_sequence", [1, 7.5])
@pytest.mark.parametrize("wave", [1, 4, 6])
def test_a_batch_holds_about_as_many_conversations_and_divides_over_the_ranks(
    conversations: int, per_sequence: float, wave: int
) -> None:
    size = Size(conversations, max(1, round(conversations / per_sequence)))
    plan = small(model={**ROTARY, "sequence": 512})
    batch = {"sequences": sequences_for(size, wave), "micro": 1}
    plan = plan.model_copy(update={"batch": build(Batch, batch)})
    micro = micro_for(plan, wave)
    assert plan.batch.sequences % (micro * wave) == 0
    assert micro * 512 <= MICRO_TOKENS
    if wave == 1:
        assert plan.batch.sequences <= size.sequences
    if wave == 1 and conversations >= 1000:
        held = plan.batch.sequences * size.conversations / size.sequences
        assert CONVERSATIONS_PER_STEP / 1.5 <= held <= CONVERSATIONS_PER_STEP * 1.5


def test_a_part_of_an_epoch_is_at_least_one_step() -> None:
    assert steps_for(packed=3, sequences=8, epochs=0.1) == 1
    assert steps_for(packed=1600, sequences=16, epochs=2) == 200


def rates_of(steps: int, decay: str) -> list[float]:
    """Return the rates of a tuning's steps as fractions of the peak, by what tuning sets for its user."""
    plan = small(batch={"sequences": 6, "micro": 2})
    chosen = build(TrainingConfig, merge(settings_for(Method("full", "next_token"))["training"], {"decay": decay}))
    chosen = chosen.model_copy(update={"steps": steps})
    config = chosen.model_copy(update=dict(course_for(chosen, plan)))
    assert rate_problems(config, plan) == []
    return [lr_of_step(config, plan, step) / FULL_LR for step in range(steps)]


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize("steps", [1, 2, 3, 200])
def test_the_rate_of_a_step_is_that_of_transformers(decay: str, steps: int) -> None:
    """Except in the warm-up, which begins above 0."""
    optimization = pytest.importorskip("transformers.optimization", reason="transformers is not installed")
    warmup = round(WARMUP_SHARE * steps)
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = getattr(optimization, f"get_{decay}_schedule_with_warmup")(optimizer, warmup, steps)
    rates, theirs = rates_of(steps, decay), []
    for _ in range(steps):
        theirs.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    assert rates[warmup:] == pytest.approx(theirs[warmup:], rel=1e-12)
    assert rates[:warmup] == pytest.approx([(step + 1) / (warmup + 1) for step in range(warmup)])


@pytest.mark.parametrize("decay", ["cosine", "linear", "constant", "inverse_sqrt"])
def test_every_step_of_a_tuning_changes_the_weights(decay: str) -> None:
    for steps in (1, 2, 30, 100):
        rates = rates_of(steps, decay)
        assert min(rates) > 0 and max(rates) == 1


def test_a_tuning_at_a_constant_rate_can_go_on_for_longer() -> None:
    assert rates_of(10, "constant") == rates_of(16, "constant")[:10] == [1] * 10
