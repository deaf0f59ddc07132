import pytest

from cost.plans import mt_nlg, small
from trivium.certify.layouts import ROTARY
from trivium.config import build, merge, to_tree
from trivium.cost.activations import layer_bytes
from trivium.cost.case import NONE, case_of
from trivium.cost.compute import hardware_flops, model_flops
from trivium.cost.estimate import estimate, planned_timeline
from trivium.cost.hardware import Machine, machine_named, machine_names, this_machine
from trivium.cost.memory import worst_rank
from trivium.cost.stack import stack_named
from trivium.errors import ConfigError
from trivium.planner.explain import plan_lines
from trivium.planner.pricing import utilisation
from trivium.units import format_seconds

SELENE = machine_named("selene")


def test_the_parts_add_up_and_the_largest_is_the_limit():
    priced = estimate(mt_nlg(), SELENE)
    assert priced.seconds == pytest.approx(sum(vars(priced.parts).values()))
    assert priced.limit == "compute" and priced.fits
    assert priced.tree()["seconds"] == priced.seconds


@pytest.mark.parametrize("micro_batches", [240, 35])
def test_the_bubble_of_mt_nlg_is_the_papers(micro_batches):
    """The last stage also computes the logits, so busier and idler ranks differ a little."""
    plan = mt_nlg(batch={"sequences": 8 * micro_batches})
    assert estimate(plan, SELENE).bubble_fraction == pytest.approx(34 / micro_batches, rel=0.12)


def test_utilisation_is_of_the_devices_there_are_however_many_ranks_share_them():
    here, plan = this_machine(2, 8 << 30), small()
    priced = estimate(plan, here)
    devices = 2 * getattr(here.peak, plan.precision.weights)
    assert plan.layout.world_size > 2
    useful = model_flops(plan.model, plan.batch.sequences).total
    assert priced.utilisation == pytest.approx(useful / priced.seconds / devices)
    assert priced.utilisation == pytest.approx(utilisation(plan, here, priced.seconds))


def test_a_plan_that_does_not_fit_is_bound_by_memory():
    priced = estimate(mt_nlg(layout={"pipeline": 1, "data": 8}), SELENE)
    assert not priced.fits and priced.limit == "memory"


def test_too_few_devices_are_refused_with_both_numbers():
    with pytest.raises(ConfigError, match=r"4760 ranks but selene has 4480 devices"):
        estimate(mt_nlg(layout={"data": 17}, batch={"sequences": 17 * 100}), SELENE)


@pytest.mark.parametrize(
    ("schedule", "pipeline", "chunks"),
    [
        ("1f1b", 1, 1),
        ("1f1b", 7, 1),
        ("1f1b", 35, 1),
        ("gpipe", 7, 1),
        ("interleaved", 5, 3),
        ("zb-h1", 7, 1),
        ("1f1b-split", 7, 1),
    ],
)
def test_the_closed_form_equals_the_simulation_of_the_schedule(schedule, pipeline, chunks):
    plan = mt_nlg(layout={"pipeline": pipeline, "chunks": chunks}, schedule=schedule)
    closed, simulated = (estimate(plan, SELENE, method=m).seconds for m in ("closed form", "simulated"))
    assert closed == pytest.approx(simulated, rel=0.002)


@pytest.mark.parametrize("every", [1, 2])
def test_on_one_rank_both_methods_are_one_sum(every):
    plan = mt_nlg(layout={"pipeline": 1}, model={"layers": 8}, recompute={"mode": "layer", "every": every})
    closed, simulated = (estimate(plan, SELENE, method=m) for m in ("closed form", "simulated"))
    assert vars(closed.parts) == pytest.approx(vars(simulated.parts))


def test_layers_that_are_not_recomputed_save_time_each_as_much():
    seconds = [
        estimate(mt_nlg(layout={"pipeline": 1}, model={"layers": 8}, recompute=r), SELENE).parts.compute
        for r in ({"mode": "layer"}, {"mode": "layer", "every": 2}, {"mode": "none"})
    ]
    assert seconds[0] - seconds[1] == pytest.approx(seconds[1] - seconds[2])
    assert seconds[0] > seconds[1]


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_an_activation_function_computed_again_takes_time_and_its_value_no_memory(family):
    plans = [
        mt_nlg(
            model={**{"gpt": {}, "llama": ROTARY}[family], "head": "untied"},
            recompute={"activation_function": again},
            layout={"tensor": 2, "data": 32},  # beyond 2, inputs and their gradient are wider than the inside
        )
        for again in (False, True)
    ]
    kept, repeated = (estimate(plan, SELENE) for plan in plans)
    assert kept.seconds < repeated.seconds < 1.05 * kept.seconds
    whole, less = (layer_bytes(case_of(plan), NONE) for plan in plans)
    model, tensor = plans[0].model, plans[0].layout.tensor
    rows = model.sequence * plans[0].batch.micro * model.ffn_width / tensor
    first, then = (worst_rank(plan)[1].workspace for plan in plans)
    assert then - first == 2 * rows  # the value, which the backward computes again
    assert whole - less == 2 * rows


def test_inputs_that_are_gathered_again_stand_beside_their_gradient():
    """In the backward of the last product, MT-NLG with tensor 8 has the gradient of the inside, half a hidden width,
    beside a weight gradient and the gradient of the output. If the sequence is split, the gradient of a rank's own
    positions is gathered."""
    whole, split = (worst_rank(mt_nlg(sequence_parallel=split))[1].workspace for split in (False, True))
    positions, hidden = 2048, 20480
    largest = 4 * hidden * hidden // 8
    assert whole == 2 * (positions * (hidden // 2 + hidden) + largest)
    assert split - whole == 2 * positions * (hidden + hidden // 8 - hidden)


def test_a_shared_machine_is_never_faster_than_all_its_cores_together():
    plan, machine = small(), this_machine(2, 8 << 30)
    priced = estimate(plan, machine)
    assert priced.parts.compute >= hardware_flops(plan).total / (machine.peak.fp32 * 2)
    assert priced.utilisation < model_flops(plan.model, 32).total / hardware_flops(plan).total


def test_more_data_ranks_make_a_step_shorter_and_zero_moves_no_more_than_an_all_reduce():
    few, many = (estimate(mt_nlg(layout={"data": d}), SELENE).seconds for d in (4, 8))
    assert many < few
    zero = [estimate(mt_nlg(zero=z), SELENE).parts.data_collectives for z in (0, 1, 2, 3)]
    assert zero[1] <= zero[0] < zero[2]  # stage 2 sends gradients once per micro-batch
    assert zero[1] < zero[3]  # stage 3 also gathers weights for each


def test_shards_of_a_node_keep_the_gathers_of_stage_3_inside_it_for_more_memory():
    """The machine has 64 nodes with slow cards. In both methods, as many shards as replicas equal the default."""
    link = SELENE.fabric_link
    slow = link.model_copy(update={"bandwidth": link.bandwidth / 10})
    machine = SELENE.model_copy(update={"fabric_link": slow})
    layout = {"tensor": 1, "pipeline": 1, "data": 512}
    plan = mt_nlg(model={"layers": 8}, layout=layout, batch={"sequences": 4096}, zero=3)
    all_together, in_nodes, everywhere = (
        plan.model_copy(update={"layout": plan.layout.model_copy(update={"shards": n})}) for n in (None, 8, 512)
    )
    for method in ("simulated", "closed form"):
        far, near, same = (estimate(p, machine, method=method) for p in (all_together, in_nodes, everywhere))
        assert far == same
        assert near.parts.data_collectives < 0.7 * far.parts.data_collectives
        assert near.memory.state == pytest.approx(64 * far.memory.state, rel=1e-3)
        assert near.parts.optimizer > far.parts.optimizer  # each rank updates 64 times as much


def test_a_factor_learned_from_a_run_multiplies_every_part():
    ours = stack_named("trivium")
    once, twice = (estimate(small(), SELENE, stack=ours.model_copy(update={"factor": f})) for f in (1.0, 2.0))
    assert {k: 2 * v for k, v in vars(once.parts).items()} == pytest.approx(vars(twice.parts))


def test_placing_data_ranks_in_a_node_makes_their_collectives_cheaper():
    near = mt_nlg(layout={"order": ["pipeline", "tensor", "data"]})
    usual, placed = (estimate(plan, SELENE).parts for plan in (mt_nlg(), near))
    assert placed.data_collectives < usual.data_collectives
    assert placed.tensor_collectives > usual.tensor_collectives


def test_the_planned_timeline_has_every_action_of_the_step_once():
    plan = small()
    timeline = planned_timeline(plan, this_machine(2, 8 << 30))
    assert sorted(map(str, timeline.spans)) == sorted(str(a) for row in plan.schedule_table() for a in row)


def test_heads_in_turns_are_the_same_work_on_other_ranks():
    model = {"layers": 16, "hidden": 2048, "heads": 16, "vocabulary": 128_256, "sequence": 2048}
    over = {"layout": {"chunks": 2, "pipeline": 4}, "model": model, "zero": 0}
    last, turns = (small(**over, schedule=name) for name in ("zb-v", "zb-turns"))
    assert hardware_flops(turns) == hardware_flops(last)
    busy = [planned_timeline(plan, SELENE).busy for plan in (last, turns)]
    assert sum(busy[1]) == pytest.approx(sum(busy[0]))
    assert max(busy[0]) > 1.2 * min(busy[0]) and max(busy[1]) < 1.05 * min(busy[1])
    # The busiest rank's work is counted as work, whatever its share of the heads is.
    priced = estimate(turns, SELENE).parts
    assert priced.compute + priced.tensor_collectives == pytest.approx(max(busy[1]))
    assert estimate(turns, SELENE).seconds < estimate(last, SELENE).seconds


def test_the_table_of_heads_in_turns_is_summed_over_all_ranks_of_the_pipeline_tied_or_not():
    def summed(schedule, **model):
        plan = small(layout={"chunks": 2}, model=model, schedule=schedule)
        return estimate(plan, SELENE).parts.data_collectives

    for head in ("tied", "untied"):
        assert summed("zb-turns", head=head) > summed("zb-v", head=head)


def test_reverse_address_translation_is_a_part_of_the_collectives_on_machines_that_declare_it():
    assert not any(machine_named(name).translates for name in machine_names()), "no constants are published"
    walks = {"translation": {"page_bytes": 1 << 21, "walk_seconds": 1e-6}}
    pod = build(Machine, merge(to_tree(SELENE), {"node_link": walks}))
    plain, priced = estimate(mt_nlg(), SELENE), estimate(mt_nlg(), pod)
    assert plain.translation_seconds == 0 < priced.translation_seconds
    assert priced.seconds - priced.translation_seconds == pytest.approx(plain.seconds)
    assert priced.parts.compute == plain.parts.compute
    assert priced.parts.tensor_collectives > plain.parts.tensor_collectives
    line = " ".join(" ".join(plan_lines(mt_nlg(), pod)).split())
    assert f"of these for reverse address translation {format_seconds(priced.translation_seconds)}" in line
