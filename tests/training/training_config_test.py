"""The defaults of a recipe: a preset that leaves a setting out trains by them, so they change on purpose only."""

from trivium.training.config import TrainingConfig

SUPERVISION = {
    "restart_seconds": 1.0,
    "preemption_seconds": 100.0,
    "hang_seconds": 30.0,
    "stall_seconds": 600.0,
    "host_seconds": 3600.0,
    "timeout_seconds": 120.0,
    "replicas_every": 100,
    "slow_every": 50,
    "slow_factor": 1.5,
}
DEFAULTS = {
    "steps": 200,
    "lr": 3e-3,
    "lr_final_fraction": 0.1,
    "warmup_tokens": 0,
    "decay": "cosine",
    "decay_tokens": 0,
    "final_decay_tokens": 0,
    "final_decay_shape": "1-sqrt",
    "weight_decay": 0.1,
    "clip": 1.0,
    "beta1": 0.9,
    "beta2": 0.95,
    "epsilon": 1e-8,
    "checkpoint_every": 50,
    "keep_last": 3,
    "keep_every": 0,
    "milestones": "none",
    "save": "background",
    "save_failures": 3,
    "start_from": None,
    "start_with": "weights",
    "validate_every": 50,
    "evaluation": {"every": 0, "tasks": "mt-nlg", "data": None, "shots": (0,), "limit": 100},
    "validation_samples": 128,
    "restarts": 2,
    "supervision": SUPERVISION,
    "spikes": {"policy": "stop", "deviations": 0.0, "window": 128, "batches": 1, "limit": 10},
    "profile": {"steps": (), "on_ranks": (0,), "memory": False},
}


def test_a_setting_that_is_left_out_has_its_documented_default() -> None:
    found = TrainingConfig().model_dump()
    assert found == DEFAULTS, "a new setting needs a default that changes nothing; write it here, too"
