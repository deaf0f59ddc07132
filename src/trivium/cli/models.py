"""`trivium models`: the models that are known by name, and what each one is."""

from typing import Annotated, Any

import typer

from trivium.cli.options import AsJson
from trivium.cli.run_config import Given, RunConfig, resolve
from trivium.cli.settings import App
from trivium.cli.show import say_either, table
from trivium.config import about_preset, leaves, preset_names, to_tree, written
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import count, count_active
from trivium.units import format_count

app = App()

_FACTS = ("parameters", "active", "layers", "hidden", "heads", "context", "vocabulary", "tokenizer", "licence")
_UNKNOWN = "-"


@app.command()
def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A name of the list, a config file, a run, or a Hugging Face model.",
            autocompletion=preset_names,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models that --model accepts by name, or show one with all its settings.

    Parameters are counted from the settings, without the padding of the vocabulary. `active` are all but those of the
    experts that a token does not visit, as Mixtral, OLMoE and Qwen count them; DeepSeek leaves out the embedding too
    (36.6B, 20.9B and 2.45B).
    """
    if name is None:
        every = {each: facts(each, resolve(Given(each))) for each in preset_names()}
        every = dict(sorted(every.items(), key=lambda one: (_family(one[0]), one[1]["parameters"])))
        say_either(_table_lines(every), [{"name": each, **found} for each, found in every.items()], as_json)
        return
    config = resolve(Given(name))
    found, shape = facts(name, config), _settings(config.plan.model)
    rows = [(fact, _text(value)) for fact, value in found.items()]
    rows += [(f"plan.model.{path}", written(value)) for path, value in leaves(shape)]
    lines = [name, *table(rows), *([] if name not in preset_names() else [_advice(name)])]
    say_either(lines, {"name": name, **found, "model": shape}, as_json)


def facts(name: str, config: RunConfig) -> dict[str, Any]:
    """Return the columns of a model. A fact that is not known for certain is None."""
    model, about = config.plan.model, about_preset(name)
    values = (
        count(model),
        count_active(model),
        model.layers,
        model.hidden,
        model.heads,
        about.get("context", model.sequence),
        model.vocabulary,
        config.tokens.tokenizer,
        about.get("licence"),
    )
    return dict(zip(_FACTS, values, strict=True))


def _family(name: str) -> str:
    """Return the name without its size."""
    return name.rpartition("-")[0] or name


def _table_lines(every: dict[str, dict[str, Any]]) -> list[str]:
    rows = [
        (name, *(format_count(found[fact]) for fact in _FACTS[:2]), *(_text(found[fact]) for fact in _FACTS[2:]))
        for name, found in every.items()
    ]
    return table(rows, header=("name", *_FACTS), indent=0)


def _settings(model: ModelShape) -> dict[str, Any]:
    """Return the settings in which a model differs from the defaults, which are those of GPT-2."""
    defaults = {name: field.default for name, field in ModelShape.model_fields.items()}
    return {name: value for name, value in to_tree(model).items() if getattr(model, name) != defaults[name]}


def _text(value: Any) -> str:
    if value is None:
        return _UNKNOWN
    return f"{value:,}" if isinstance(value, int) else str(value)


def _advice(name: str) -> str:
    return f"  train it: trivium train --model {name} --gpus N --out RUN"
