"""Plans: everything about a run as pure data, made from a config, executed by the runtime, priced by the planner."""
