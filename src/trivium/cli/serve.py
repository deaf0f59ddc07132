"""`trivium serve`: a checkpoint answers over HTTP."""

from pathlib import Path
from typing import Annotated, Any

import typer

from trivium.cli.options import DEFAULT_OUT, Out, Preset, Sets, given_for, open_run
from trivium.cli.show import say
from trivium.errors import ConfigError, MachineError
from trivium.serving.config import ServeConfig

app = typer.Typer(rich_markup_mode=None, add_completion=False)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@app.command()
def serve(
    target: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN_OR_CHECKPOINT]",
            help="A run, a checkpoint or a folder of Hugging Face. Without it: the run of --out.",
        ),
    ] = None,
    out: Out = DEFAULT_OUT,
    preset: Preset = None,
    sets: Sets = None,
) -> None:
    """Answer /v1/completions as OpenAI's do, and show a playground; on this machine alone unless told otherwise.

    --set serve.port=8000, and so host, keys, hosts, max_tokens, texts, queue, deadline_seconds, together.
    """
    run = open_run(out, given_for(out, preset, sets))
    config = run.config.serve
    if config.host not in LOOPBACK and config.keys is None:
        raise ConfigError(
            f"serve.host is {config.host}, where others reach it, and serve.keys is not given; give a file of API "
            "keys, one per line, or serve at 127.0.0.1"
        )
    uvicorn = _library()
    from trivium.evaluation.answer import NativeScorer
    from trivium.interchange.target import opened
    from trivium.serving.app import create_app
    from trivium.serving.guard import read_keys
    from trivium.serving.writer import Writer

    keys = read_keys(Path(config.keys)) if config.keys else None
    with opened(target or out, None if target else run.tokenizer) as found:
        writer = Writer(NativeScorer.open(found.newest, found.tokenizer), together=config.together)
        name = (found.run or found.newest).resolve().name
        application = create_app(writer, config, name=name, keys=keys, seed=run.config.seed)
        say(f"serving {name} ({found.newest.name}) at http://{config.host}:{config.port}/")
        uvicorn.run(application, **uvicorn_options(config))


def uvicorn_options(config: ServeConfig) -> dict[str, Any]:
    """How the server is run: a connection waits 5 seconds for the next request, and no header says who asks."""
    return {
        "host": config.host,
        "port": config.port,
        "log_level": "warning",
        "proxy_headers": False,
        "server_header": False,
        "timeout_keep_alive": 5,
        "limit_concurrency": 4 * config.queue + 16,
    }


def _library() -> Any:
    try:
        import fastapi  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MachineError(
            f"`trivium serve` needs fastapi and uvicorn ({error}); install them with `pip install -e '.[serve]'`"
        ) from None
    return uvicorn
