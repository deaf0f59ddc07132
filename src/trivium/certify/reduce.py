"""A plan made small enough to certify in seconds, with everything kept that decides which code runs.

Kept: layout with its shards, chunks, schedule, ZeRO stage, recompute, sequence parallelism, how ranks attend over a
split sequence, documents, kinds of parts, head, latents, query heads per key-value head, heads of a width of their own,
biases and norms of queries and keys, norm position, rope scaling, windows (in some layers or all, whether they hide
anything), dropout, z-loss, which stages hold more layers than others, whether sizes are odd, and how the vocabulary is
padded.
"""

import itertools
from collections.abc import Callable, Iterator
from math import gcd

from trivium.config import Tree, merge
from trivium.errors import ConfigError
from trivium.plan.latent import Latent
from trivium.plan.layers.form import Run
from trivium.plan.messages import Messages
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan

MAX_RANKS = 32  # one process each on this machine
MIN_SEQUENCE = 10  # a half of what each of two context ranks holds is then odd
MAX_WINDOW = 5  # positions: it hides something of the smallest sequence, and reaches over blocks and pieces of it
MIN_VOCABULARY_ROWS = 8  # on a tensor rank
MAX_STAGE_LAYERS = 3
MAX_LATENT_COLUMNS = {"kv_rank": 7, "query_rank": 9, "plain_columns": 3, "rotated_columns": 4, "value_columns": 5}
# A norm after a half enlarges the rounding noise of small values by up to 1 / sqrt(epsilon): with 1e-5, five
# layers made 7e-11 of 1e-16.
MIN_EPSILON_AFTER = 0.1

DEEP_LAYERS, MANY_MICRO_BATCHES = 33, 17  # more than any constant by which they may be counted
LONG_DROPOUT = 0.2
LONG_RAMP_BATCHES = 72  # first batches in a ramp, which is most of the long course
MAX_LONG_RANKS = 4  # with more, the long course has one replica: all replicas count steps in the same way


def epsilon_of(model: Tree) -> Tree:
    """Return the epsilon of norms that keeps rounding noise small; empty where the model's own is large enough."""
    after = model.get("norm_position") == "after" or model.get("wiring") == "sandwich"
    return {"norm_epsilon": MIN_EPSILON_AFTER} if after and model.get("norm_epsilon", 0.0) < MIN_EPSILON_AFTER else {}


def reduced(plan: Plan) -> Plan:
    """The smallest legal plan of the same kind. Raises ConfigError if the plan is illegal or has too many ranks."""
    plan = plan.checked()
    ranks = plan.layout.world_size
    if ranks > MAX_RANKS:
        raise ConfigError(
            f"plan.layout has {ranks} ranks; a certificate starts one process for each on this machine, at most "
            f"{MAX_RANKS}: lower plan.layout.data ({plan.layout.data}), pipeline ({plan.layout.pipeline}) or tensor "
            f"({plan.layout.tensor}); what a degree computes does not depend on its size"
        )
    refuse_capacity(plan.model)
    refuse_rounded(plan.messages)
    for candidates in (_fewer_sequences, _fewer_layers, _fewer_experts, _narrower, _fewer_words, _shorter):
        plan = _first_legal(plan, candidates)
    return plan


def refuse_capacity(model: ModelShape) -> None:
    """Raise ConfigError if experts drop tokens: which ones depends on the layout."""
    for experts in model.experts_by_layer.values():
        if experts.capacity is not None:
            raise ConfigError(
                f"plan.model.experts.capacity is {experts.capacity}: which tokens an expert drops depends on how "
                f"tokens are divided into micro-batches and over ranks, so no layout computes what one process "
                f"computes; set plan.model.experts.capacity to null, or leave this plan uncertified"
            )


def refuse_rounded(messages: Messages) -> None:
    """Raise ConfigError if messages are rounded: what a layout computes then depends on which messages it sends."""
    for name, encoding in messages:
        if encoding != "exact":
            raise ConfigError(
                f"plan.messages.{name} is {encoding}, which rounds what ranks send each other, so no layout computes "
                f"what one process computes; set plan.messages.{name} to exact, or leave this plan uncertified"
            )


def thin_and_long(plan: Plan) -> Plan:
    """A reduced plan for the long course: few ranks, one layer a stage, few micro-batches, dropout, and a ramp, where
    there is one, of many steps."""

    def alone(plan: Plan) -> Iterator[Tree]:
        expert = gcd(plan.layout.expert, plan.layout.context)
        few: Tree = {"layout": {"data": 1, "shards": None, "expert": expert}}
        yield {**few, "batch": {"sequences": plan.batch.sequences // plan.layout.data}}
        yield few  # a ramp reaches no other batch

    def candidates(plan: Plan) -> Iterator[Tree]:
        counts = tuple(min(n, 1) for n in plan.partition.counts(plan.model, plan.layout))
        for dropout in (plan.model.dropout or LONG_DROPOUT, plan.model.dropout):
            layers = _layers_by_stage(plan, counts, dropout=dropout)
            fewest, ramp = 2 if plan.layout.pipeline == 1 else 1, plan.batch.ramp is not None
            yield from ({**layers, **batch} for batch in _batches_from(plan, fewest, ramp=ramp))
            yield layers  # a given table has its own number of micro-batches

    few = _first_legal(plan, alone) if plan.layout.world_size > MAX_LONG_RANKS else plan
    return _first_legal(few, candidates)


def thin_and_deep(plan: Plan) -> Plan:
    """A reduced plan with more layers than any number that they may be counted by, and few micro-batches."""

    def candidates(plan: Plan) -> Iterator[Tree]:
        counts = plan.partition.counts(plan.model, plan.layout)
        layers = _layers_by_stage(plan, tuple(n * -(-DEEP_LAYERS // sum(counts)) for n in counts))
        yield from ({**layers, **batch} for batch in _batches_from(plan, 1))
        yield layers

    return _first_legal(plan, candidates)


def thin_and_many(plan: Plan) -> Plan:
    """A reduced plan with one layer a stage, and more micro-batches in a step than any number that they may be counted
    by."""

    def candidates(plan: Plan) -> Iterator[Tree]:
        counts = tuple(min(n, 1) for n in plan.partition.counts(plan.model, plan.layout))
        layers = _layers_by_stage(plan, counts)
        yield from ({**layers, **batch} for batch in _batches_from(plan, MANY_MICRO_BATCHES))
        yield layers

    return _first_legal(plan, candidates)


def _batches_from(plan: Plan, fewest: int, *, ramp: bool = False) -> Iterator[Tree]:
    """Yield batches of `fewest` micro-batches and of more, because some schedules need multiples of the pipeline. A
    ramp starts there and rises twice."""
    for number in range(fewest, fewest + 2 * plan.layout.pipeline):
        first = number * plan.batch.micro * plan.layout.data
        rises = {"start": first, "increment": first, "samples": LONG_RAMP_BATCHES * first}
        yield {"batch": {"sequences": 3 * first if ramp else first, "ramp": rises if ramp else None}}


def _layers_by_stage(plan: Plan, counts: tuple[int, ...], **model: object) -> Tree:
    layers = {"layers": sum(counts), **_runs(plan.model, sum(counts)), **model}
    partition = {"layers": counts, "embedding_weight": 0.0, "head_weight": 0.0}
    return {"model": layers, "partition": partition}


def _first_legal(plan: Plan, candidates: Callable[[Plan], Iterator[Tree]]) -> Plan:
    """The plan with the first change that is smaller and legal; itself if there is none."""
    for change in candidates(plan):
        candidate = Plan.model_validate(merge(plan.model_dump(), change))
        fewer = candidate.model.model_copy(update={"adapters": candidate.model.used_adapters})
        candidate = candidate.model_copy(update={"model": fewer})
        kept = candidate.optimizer.of(candidate.model)
        candidate = candidate.model_copy(update={"optimizer": kept})
        if not candidate.check():
            return candidate
    return plan


def _fewer_sequences(plan: Plan) -> Iterator[Tree]:
    """Two sequences per micro-batch at most; micro-batches enough for a steady phase, of the same parity."""
    micro, pipeline = min(plan.batch.micro, 2), plan.layout.pipeline
    if plan.batch.ramp is not None:
        yield from _short_ramps(plan, micro)
        return
    micro_batches = plan.batch.micro_batches(plan.layout)
    for few in range(min(pipeline + 2, micro_batches), micro_batches + 1):
        if few % 2 == micro_batches % 2:
            yield {"batch": {"micro": micro, "sequences": few * micro * plan.layout.data}}


def _short_ramps(plan: Plan, micro: int) -> Iterator[Tree]:
    """Two rises; the micro-batches of a step are multiples of the pipeline where the schedule needs it."""
    for multiple in (2, plan.layout.pipeline, 1):
        unit = multiple * micro * plan.layout.data
        ramp = {"start": unit, "increment": unit, "samples": 3 * unit}
        yield {"batch": {"micro": micro, "sequences": 3 * unit, "ramp": ramp}}


def _fewer_layers(plan: Plan) -> Iterator[Tree]:
    """Stages keep their order by number of layers: an empty one stays empty, a fuller one stays fuller."""
    counts = plan.partition.counts(plan.model, plan.layout)
    ranks = {count: n for n, count in enumerate(sorted({c for c in counts if c}), start=1)}
    few = [min(ranks.get(c, 0), MAX_STAGE_LAYERS) for c in counts]
    every = {"every": min(plan.recompute.every, 2)}
    # Two blocks, so that one can be recomputed and one not; as many as there are kinds.
    enough = min(max(2, len(plan.model.first) + len(_reached(plan.model))), plan.model.layers)
    while sum(few) < enough:
        few = [min(count, n + 1) for count, n in zip(counts, few, strict=True)]
    explicit = plan.partition.layers is not None
    partition: Tree = {"layers": tuple(few) if explicit else None}
    model = {"layers": sum(few), **_runs(plan.model, sum(few))}
    if not explicit:
        # The balanced split itself is certified too, where it gives the same kind of stages.
        balanced = {"model": model, "partition": partition, "recompute": every}
        candidate = Plan.model_validate(merge(plan.model_dump(), balanced))
        if candidate.partition.counts(candidate.model, candidate.layout) == tuple(few):
            yield balanced
    given = {"layers": tuple(few), "embedding_weight": 0.0, "head_weight": 0.0}
    yield {"model": model, "partition": given, "recompute": every}


def _runs(model: ModelShape, layers: int) -> Tree:
    """Runs of one layer each instead of several, with the kinds of layers of the model in their order."""
    of_first = sum(run.times for run in model.first)
    first = model.first[: max(0, layers - 1)] if model.pattern or of_first < model.layers else model.first
    pattern = _reached(model)[: layers - len(first)]
    return {
        name: [{**run.settings, "times": 1} for run in runs] for name, runs in (("first", first), ("pattern", pattern))
    }


def _reached(model: ModelShape) -> list[Run]:
    """The runs of the pattern that the layers reach."""
    behind_first = model.layers - sum(run.times for run in model.first)
    return [run for run, start in zip(model.pattern, _starts(model.pattern), strict=False) if start < behind_first]


def _starts(runs: tuple[Run, ...]) -> Iterator[int]:
    """The layer with which each run begins."""
    return itertools.accumulate((run.times for run in runs), initial=0)


def _narrower(plan: Plan) -> Iterator[Tree]:
    """Use as few heads as the split allows, each 4 columns wide (3 if the width is odd)."""
    model, tensor = plan.model, plan.layout.tensor
    width = min(model.head_columns, 4 if model.head_columns % 2 == 0 else 3)
    # Queries that are wider than the hidden columns together, or narrower, stay so.
    queries_wide = model.heads * model.head_columns
    share_of_hidden = max(1, width + 2 * ((model.hidden > queries_wide) - (model.hidden < queries_wide)))
    queries = model.heads // model.kv
    most = max(1, model.kv // tensor)  # key-value heads of a tensor rank; two, where one would hide their order
    for share in range(min(most, 2 if queries == 1 else 1), most + 1):
        for per_group in (min(queries, 2 + queries % 2), queries):
            groups = share * tensor
            heads = groups * per_group
            shape: Tree = {"heads": heads, "hidden": heads * share_of_hidden, "init_std": None}
            shape |= epsilon_of(model.model_dump(include={"norm_position", "wiring", "norm_epsilon"}))
            shape["kv_heads"] = None if model.kv_heads is None else groups
            shape["head_width"] = None if model.head_width is None else width
            shape["rope_columns"] = None if model.rope_columns is None else min(model.rope_columns, 2)
            shape["latent"] = None if model.latent is None else _narrow(model.latent)
            columns = 7 if model.ffn_width // tensor % 2 else 8
            yield {"model": {**shape, "ffn": None if _plain_width(plan) else columns * tensor}}
            yield {"model": {**shape, "ffn": columns * tensor}}


def _fewer_experts(plan: Plan) -> Iterator[Tree]:
    """Two or three groups at most, of as few experts as expert ranks and the choice allow, each as wide as a reduced
    feed-forward layer."""
    given, tensor = plan.model.experts, plan.layout.tensor
    if given is None:
        return

    def narrow(columns: int) -> int:
        return min(columns, (7 if columns // tensor % 2 else 8) * tensor)

    groups = min(given.groups, 3)
    for chosen, count in itertools.product(range(1, given.chosen + 1), range(groups, given.count + 1, groups)):
        experts: Tree = {"count": count, "chosen": chosen, "groups": groups, "shared": narrow(given.shared)}
        experts["chosen_groups"] = min(given.chosen_groups, 2 if groups > 2 else groups)
        experts["columns"] = None if given.columns is None else narrow(given.columns)
        several = min(chosen, 2) == min(given.chosen, 2)  # a token visits one expert, or several
        if several and count > chosen and count % plan.layout.expert == 0:
            yield {"model": {"experts": experts}}


def _narrow(latent: Latent) -> Tree:
    """Return latents and heads with few columns; those of the parts are then different."""
    return {
        name: None if (size := getattr(latent, name)) is None else min(size, most)
        for name, most in MAX_LATENT_COLUMNS.items()
    }


def _plain_width(plan: Plan) -> bool:
    """Whether the feed-forward width follows from the hidden size, and stays small when that is small."""
    return plan.model.ffn is None and plan.model.ffn_width % plan.model.hidden == 0


def _fewer_words(plan: Plan) -> Iterator[Tree]:
    """Use fewer rows of the vocabulary with the same kind of padding: none, part of the last rank's rows, or whole
    ranks."""
    model, tensor = plan.model, plan.layout.tensor
    padded = model.padded_vocabulary(tensor)
    rows = padded // tensor
    empty, partly = divmod(padded - model.vocabulary, rows)
    units = rows // model.vocabulary_multiple  # number of row units, each of which is a multiple
    few = units if empty else min(units, MIN_VOCABULARY_ROWS + units % 2)
    enough = -(-MIN_VOCABULARY_ROWS // few)
    multiple = min(model.vocabulary_multiple, enough + (enough + model.vocabulary_multiple) % 2)
    vocabulary = (tensor - empty) * few * multiple - (1 if partly else 0)
    if vocabulary < model.vocabulary:
        end = min(model.end_of_text, vocabulary - 1)
        yield {"model": {"vocabulary": vocabulary, "vocabulary_multiple": multiple, "end_of_text": end}}


def _shorter(plan: Plan) -> Iterator[Tree]:
    """The shortest legal sequence of the same parity, of which a window still hides something, or still nothing."""
    sequence, window = plan.model.sequence, plan.model.window
    if window is not None and window < sequence:
        window = min(window, MAX_WINDOW)
    for short in range(min(MIN_SEQUENCE, sequence), sequence):
        if short % 2 == sequence % 2:
            yield {"model": {"sequence": short, "window": window}}
