"""What a config's plan costs on its machine, before anything runs; no torch."""

from pathlib import Path

from trivium.cli.machine import cores, memory_bytes
from trivium.cli.run_config import HERE, Given, is_machine_file, resolve
from trivium.config import leaves, to_tree, written
from trivium.cost.estimate import estimate
from trivium.cost.hardware import Machine, machine_from_file, machine_named, this_machine
from trivium.errors import ConfigError
from trivium.planner.explain import plan_lines
from trivium.training.rates import rate_line
from trivium.units import format_seconds


def machine_of(name: str) -> Machine:
    """A machine by name, or by the path of a machine file; "here" is the one this runs on."""
    if name == HERE:
        return this_machine(cores(), memory_bytes())
    return machine_from_file(Path(name)) if is_machine_file(name) else machine_named(name)


def dry_run_lines(given: Given) -> tuple[list[str], list[str]]:
    """The resolved config and its price, and its problems; nothing is touched."""
    config = resolve(given)
    lines = [f"{path}={written(value)}" for path, value in leaves(to_tree(config))]
    problems = config.problems()
    if problems:
        return lines, problems
    try:
        machine = machine_of(config.machine)
        price = estimate(config.plan, machine)
        told = plan_lines(config.plan, machine, config.search.memory_fraction)
    except ConfigError as error:
        return lines, str(error).splitlines()
    steps = config.training.steps
    whole = f"{steps} steps of the full batch: about {format_seconds(steps * price.seconds)} by this estimate"
    rate = rate_line(config.training, config.plan)
    return [*lines, "", *told, whole, rate, "nothing was started or written"], []
