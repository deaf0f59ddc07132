"""`trivium checkpoint`: list, show, verify, rewrite, average, exchange and remove checkpoints."""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trivium.cli.model_argument import asked_model, model_path
from trivium.cli.options import DEFAULT_OUT, AskedAdapter, Out, directory_of, refuse_given, refuse_model_folder
from trivium.cli.paths import local_path, path_or_url
from trivium.cli.settings import App
from trivium.cli.show import layout_text, say, table
from trivium.cli.workspace import Workspace
from trivium.config import as_value, leaves, written
from trivium.errors import CheckpointError, ConfigError, DataError, nearest
from trivium.families.common.hf_config import describes_model
from trivium.hub import is_hub_name
from trivium.units import counted, format_bytes, format_count

if TYPE_CHECKING:
    from trivium.checkpoint.load import Checkpoint
    from trivium.stores.remote import Location

app = App(help="List, verify, rewrite, average, exchange and remove checkpoints.", no_args_is_help=True)

FORMATS = ("hf", "peft")  # of an exported folder

Which = Annotated[
    str | None,
    typer.Argument(
        metavar="STEP|DIR",
        help="A step of --out, a checkpoint's directory, or a run's for its newest; default: newest.",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", parser=local_path, metavar="FILE", help="Write the result as JSON too.")
]


@app.command()
def verify(
    which: Which = None,
    out: Out = DEFAULT_OUT,
    every: Annotated[bool, typer.Option("--all", help="Every checkpoint of --out, or of the run that DIR is.")] = False,
) -> None:
    """Check every file's sha256, and that values are finite. Exit code 5 when one is bad."""
    from trivium.checkpoint.verify import summary

    paths = _all(which, out) if every else [_one(which, out)]
    found = [summary(path, verified=True) for path in paths]
    for row in found:
        told = row.get("problem") or f"{counted(row['files'], 'file')}, {format_bytes(row['bytes'])}"
        say(f"  {row['path']}: {row['state']}; {told}")
    bad = [row["path"] for row in found if row["state"] != "verified"]
    if bad:
        raise CheckpointError(
            f"{len(bad)} of {len(found)} checkpoints are damaged or not finite: {', '.join(bad)}; use another one"
        )


@app.command(short_help="List the checkpoints of a run, or show one.")
def show(
    which: Annotated[
        str | None,
        typer.Argument(
            metavar="STEP|DIR",
            help="A step of --out or a checkpoint's directory: shows it. A run's directory, or nothing: lists all.",
        ),
    ] = None,
    out: Out = DEFAULT_OUT,
    tensors: Annotated[bool, typer.Option("--tensors", help="Every tensor with its shape and pieces.")] = False,
    json: Json = None,
) -> None:
    """List the checkpoints of a run; or show what one is: progress, model, hashes, tensors."""
    if which is not None and names_one(which):
        _show_one(_one(which, out), tensors, json)
        return
    refuse_given({"--tensors": tensors}, "a list shows no tensors; name one checkpoint by STEP or DIR")
    _list(directory_of(None if which is None else local_path(which), out), json)


def names_one(which: str) -> bool:
    """Return whether an argument is a step, a URL or a checkpoint's directory. Anything else is a run's directory."""
    from trivium.checkpoint.format import MANIFEST, step_of

    path = Path(which)
    return "://" in which or _step(which) is not None or step_of(path.name) is not None or (path / MANIFEST).is_file()


def _list(run: Path, json: Path | None) -> None:
    from trivium.checkpoint.format import published
    from trivium.checkpoint.verify import summary

    if not run.is_dir():
        what = "is a file" if run.exists() else "does not exist"
        raise DataError(f"{run} {what}; name the --out of `trivium train`")
    found = [summary(path) for path in published(_checkpoints_of(run))]
    rows = [
        (
            r["step"],
            r["state"],
            format_bytes(r.get("bytes", 0)),
            r.get("files", 0),
            r.get("dtype") or "",
            layout_text(r["layout"]) if r.get("layout") else "",
        )
        for r in found
    ]
    if rows:
        for line in table(rows, header=("step", "state", "size", "files", "dtype", "written by")):
            say(line)
    else:
        say(f"{_checkpoints_of(run)} holds no checkpoints")
    for row in found:
        if "problem" in row:
            say(f"  {row['problem']}")
    _write_json(json, {"checkpoints": found})


def _show_one(directory: "Location", tensors: bool, json: Path | None) -> None:
    from trivium.checkpoint.format import STRUCTURE, read_manifest
    from trivium.checkpoint.verify import abbreviated, summary

    manifest, row = read_manifest(directory), summary(directory)
    say(f"{directory}: step {manifest['step']}, {format_count(row['parameters'])} parameters")
    say(f"  {', '.join(row['kinds'])}; {counted(row['files'], 'file')}, {format_bytes(row['bytes'])}")
    about = {k: v for k, v in manifest.items() if k not in STRUCTURE}
    for line in table([(path, written(value)) for path, value in leaves(abbreviated(about))]):
        say(line)
    if tensors:
        entries = manifest["tensors"]
        rows = [
            (n, entries[n]["dtype"], " x ".join(map(str, entries[n]["shape"])), str(len(entries[n]["pieces"])))
            for n in sorted(entries)
        ]
        for line in table(rows, header=("tensor", "dtype", "shape", "pieces")):
            say(line)
    _write_json(json, {**row, "about": about})


def compare(a: str, b: str, out: Path, json: Path | None) -> bool:
    """Print the settings and then the tensors in which two checkpoints differ; return whether any does."""
    from trivium.checkpoint.compare import about_differences, tensor_differences

    one, two = map(_opened, _several([a, b], out))
    settings, tensors = about_differences(one, two), list(tensor_differences(one, two))
    for line in settings:
        say(f"  {line}")
    for tensor in tensors:
        say(f"  {tensor.name}: {tensor.what}")
    say(f"{len(settings)} settings and {len(tensors)} of {len(one.names)} tensors differ")
    _write_json(json, {"settings": settings, "tensors": [t._asdict() for t in tensors]})
    return bool(settings or tensors)


@app.command()
def reshard(
    which: Which = None,
    out: Out = DEFAULT_OUT,
    to: Annotated[Path, typer.Option("--to", parser=local_path, metavar="DIR", help="Where the new one goes.")] = Path(
        "resharded"
    ),
    files: Annotated[int, typer.Option("--files", metavar="N", help="How many files it has.")] = 1,
) -> None:
    """Rewrite a checkpoint as another number of files. (Any layout reads it with any number.)"""
    from trivium.checkpoint.reshard import reshard as rewrite

    say(f"  {rewrite(_opened(_one(which, out)), to, files=files)}")


@app.command(short_help="Write the mean of the weights of several checkpoints.")
def average(
    steps: Annotated[list[str], typer.Argument(metavar="STEP|DIR…", help="Two or more, each once.")],
    out: Out = DEFAULT_OUT,
    to: Annotated[
        Path | None,
        typer.Option("--to", parser=local_path, metavar="DIR", help="Where it goes; default: DIR/averaged of --out."),
    ] = None,
) -> None:
    """Write the mean of the weights of several checkpoints of one model, to evaluate, export or train from."""
    from trivium.checkpoint.average import average as write_mean

    # Without --to the mean goes into --out, whatever is named.
    paths = [_place(step, out) for step in steps] if to is None else _several(steps, out)
    path = write_mean([_opened(path) for path in paths], to or out / "averaged")
    setting = f"training.start_from={as_value(str(path.resolve()))}"
    say(f"  {path}; train from it with --set {shlex.quote(setting)}")


@app.command(short_help="Put adapters into the weights of their layers.")
def merge(
    which: Which = None,
    out: Out = DEFAULT_OUT,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            parser=local_path,
            metavar="DIR",
            help="Where it goes; default: merged in its run, or beside it if it is in no run.",
        ),
    ] = None,
) -> None:
    """Write a checkpoint without adapters that computes the same, to evaluate, export or train from."""
    from trivium.interchange.merge import merge as put_in
    from trivium.interchange.target import carry_tokenizer, run_of

    place = _one(which, out)
    of_out = which is None or _step(which) is not None or not isinstance(place, Path)
    path = put_in(_opened(place), to or (run_of(place) or (out if of_out else place.parent)) / "merged")
    carry_tokenizer(place, path.parent)
    say(f"  {path}; export it with {shlex.join(['trivium', 'checkpoint', 'export', 'DIR', str(path)])}")


@app.command(short_help="Take merged adapters out of the weights again.")
def unmerge(
    merged: Annotated[Path, typer.Argument(parser=local_path, metavar="MERGED", help="The merged checkpoint.")],
    adapted: Annotated[
        Path, typer.Argument(parser=local_path, metavar="ADAPTED", help="The checkpoint that was merged.")
    ],
    to: Annotated[Path, typer.Option("--to", parser=local_path, metavar="DIR", help="Where the base goes.")] = Path(
        "unmerged"
    ),
) -> None:
    """Write the base of a merged checkpoint; its weights are those of the base to rounding."""
    from trivium.interchange.merge import unmerge as take_out
    from trivium.interchange.target import carry_tokenizer

    one, other = (_opened(_place(str(place), DEFAULT_OUT)) for place in (merged, adapted))
    path = take_out(one, other, to)
    carry_tokenizer(other.directory, path.parent)
    say(f"  {path}")


@app.command("export", short_help="Write a checkpoint as a Hugging Face folder, or its adapters as one of PEFT.")
def export_(
    folder: Annotated[Path, typer.Argument(parser=local_path, metavar="DIR", help="The new folder.")],
    which: Which = None,
    out: Out = DEFAULT_OUT,
    form: Annotated[
        str, typer.Option("--format", metavar="hf|peft", help="hf: transformers; peft: its adapters alone.")
    ] = "hf",
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--tokenizer", parser=local_path, metavar="FILE", help="tokenizer.json; default: the checkpoint's run's."
        ),
    ] = None,
) -> None:
    """Write a checkpoint as a Hugging Face folder of its architecture, with tokenizer; its logits are checked."""
    from trivium.checkpoint.format import MANIFEST
    from trivium.interchange.export import export_hf
    from trivium.interchange.target import opened, tokenizer_near

    if (folder / MANIFEST).is_file() or Workspace(folder).saved.is_dir():
        raise ConfigError(
            f"DIR {folder} has checkpoints, and the new folder comes first: `trivium checkpoint export NEW {folder}`"
        )
    if form not in FORMATS:
        raise ConfigError(f"--format {form}: there is no such format; {nearest(form, FORMATS)}")
    if form == "peft":
        from trivium.interchange.peft import export_peft

        say(f"  {export_peft(_opened(_one(which, out)), folder)}")
        return
    foreign = which is not None and (is_hub_name(which) or describes_model(Path(which)))
    with opened(asked_model(str(which)), tokenizer) if foreign else nullcontext() as target:
        source = _opened(_one(which, out) if target is None else target.newest)
        near = tokenizer_near(source.directory) if isinstance(source.directory, Path) else None
        words = tokenizer or (near if target is None else target.tokenizer)
        found = export_hf(source, folder, tokenizer=words)
    say(
        f"  {found.folder}: {counted(found.files, 'file')} of weights; logits differ by at most {found.difference:.2g} "
        f"at {found.positions} positions"
    )
    if words is None:
        say(f"  without a tokenizer: no tokenizer.json is near {source.directory}; name one with --tokenizer")


@app.command("import", short_help="Take weights of a Hugging Face folder.")
def import_(
    folder: Annotated[
        Path, typer.Argument(parser=model_path, metavar="MODEL", help="A Hugging Face folder or hf:ORG/NAME.")
    ],
    to: Annotated[
        Path | None,
        typer.Option("--to", parser=local_path, metavar="DIR", help="Where it goes; default: DIR/imported of --out."),
    ] = None,
    out: Out = DEFAULT_OUT,
    adapter: AskedAdapter = None,
) -> None:
    """Take weights and tokenizer of a Hugging Face folder (docs/formats/checkpoint.md names the architectures).

    Without --to, --out becomes a run that trains from these weights, generates and exports. With --to, a preset beside
    the new checkpoint does. MODEL may be a PEFT folder that names its base, or --adapter names one.
    """
    from trivium.cli.imported import began_run, refuse_preset, write_preset
    from trivium.cli.model_argument import PRESET
    from trivium.interchange.bring import import_hf, tokenizer_files
    from trivium.interchange.target import base_and_adapter, import_adapted

    refuse_model_folder(to or out)
    (folder, adapter), root = base_and_adapter(asked_model(folder), adapter), to or out / "imported"
    refuse_preset(root)
    path = import_hf(folder, root) if adapter is None else import_adapted(folder, adapter, root)
    say(f"  {path}")
    if carried := tokenizer_files(root):
        say(f"  {', '.join(carried)}: copied beside it")
    for line in write_preset(path):
        say(f"  {line}")
    preset, run = str(root / PRESET), str(out)
    if not carried:
        say(f"  {folder} has no tokenizer.json; train from it with tokens that were made with its tokenizer:")
        say(f"    {shlex.join(['trivium', 'train', '--preset', preset, '--tokens', 'DIR', '--out', run])}")
        return
    begins = to is None and began_run(out)
    say(f"  ask it: {shlex.join(['trivium', 'generate', run if begins else str(root)])}")
    say("  train from it (on your own text with --data PATH):")
    say(f"    {shlex.join(['trivium', 'corpus', 'run', *([] if begins else [preset]), '--out', run])}")
    say(f"    {shlex.join(['trivium', 'train', '--out', run])}")


@app.command(short_help="Delete checkpoints, never the last good one.")
def rm(
    steps: Annotated[list[str], typer.Argument(metavar="STEP|DIR", help="What to delete.")],
    out: Out = DEFAULT_OUT,
    last: Annotated[bool, typer.Option("--last", help="Even if no other good checkpoint remains.")] = False,
) -> None:
    """Delete checkpoints; refused while a job trains there, or when no good one would remain."""
    from trivium.checkpoint.durable import remove
    from trivium.checkpoint.format import MANIFEST, published, step_of
    from trivium.checkpoint.lease import refuse_if_held
    from trivium.checkpoint.verify import summary

    _refuse_another_out(steps, out)
    named = [_path(step, out) for step in steps]
    for place in named:
        if not isinstance(place, Path):
            raise ConfigError(
                f"{place} is not deleted: `trivium checkpoint rm` deletes from folders; delete it with the store's own "
                f"tools while no job trains there, {MANIFEST} first"
            )
    # Each once. A link stays one: where it leads to is another run, whose lease and other checkpoints are not asked.
    doomed = list(dict.fromkeys(path.parent.resolve() / path.name for path in named if isinstance(path, Path)))
    for path in doomed:
        if step_of(path.name) is None:
            raise CheckpointError(f"{path} is not deleted: only checkpoints are, and none has such a name")
        refuse_if_held(path.parent.parent)
        rest = [p for p in reversed(published(path.parent)) if p not in doomed]
        if not last and not any(summary(p, verified=True)["state"] == "verified" for p in rest):
            raise ConfigError(
                f"{path} is not deleted: none of the {len(rest)} checkpoints that would remain is good; "
                f"give --last to delete it all the same"
            )
    for path in doomed:
        remove(path)
        say(f"  deleted {path}")


def _one(which: str | None, out: Path) -> "Location":
    """Return `_place` if no other argument is given."""
    _refuse_another_out([which], out)
    return _place(which, out)


def _several(named: Sequence[str], out: Path) -> "list[Location]":
    """Return `_place` for each argument; --out must contain at least one of them."""
    _refuse_another_out(named, out)
    return [_place(which, out) for which in named]


def _refuse_another_out(named: Sequence[str | None], out: Path) -> None:
    """ConfigError where --out is given, and nothing named is a step or a directory of it: which was meant?"""
    folders = [Path(which) for which in named if which is not None and _step(which) is None]
    if out == DEFAULT_OUT or len(folders) < len(named):
        return
    if not any(folder.resolve().is_relative_to(out.resolve()) for folder in folders):
        told = " and ".join(map(str, folders))
        raise ConfigError(f"--out {out}: {told} {'is' if len(folders) == 1 else 'are'} not in it; name one of the two")


def _place(which: str | None, out: Path) -> "Location":
    """Return `_path`, or the newest checkpoint of a run directory, of a folder of checkpoints or at a URL."""
    from trivium.checkpoint.format import published
    from trivium.cli.imported import refuse_adapters_alone

    if which is None:
        return _path(None, out)
    if "://" in which:
        return _at_url(which)
    refuse_adapters_alone(Path(which))
    if _is_run(Path(which)):
        return _path(None, Path(which))
    found = published(Path(which))
    return found[-1] if found else _path(which, out)


def _at_url(which: str) -> "Location":
    """The checkpoint at a URL, or the newest one in a folder of checkpoints there, or of a run."""
    from trivium.checkpoint.format import MANIFEST, published
    from trivium.stores.remote import Remote
    from trivium.training.record import CHECKPOINTS

    place = Remote(str(path_or_url(which, "DIR")))
    if (place / MANIFEST).is_file():
        return place
    found = published(place) or published(place / CHECKPOINTS)
    if not found:
        raise CheckpointError(f"{place} holds no checkpoint; name one, or the URL that was training.store")
    return found[-1]


def _checkpoints_of(run: Path) -> "Location":
    """The folder of a run's checkpoints, which is at a URL if training.store says so."""
    from trivium.checkpoint.format import store_of

    return store_of(run) or Workspace(run).saved


def _is_run(place: Path) -> bool:
    from trivium.checkpoint.format import store_of

    return Workspace(place).saved.is_dir() or store_of(place) is not None


def _all(which: str | None, out: Path) -> "Sequence[Location]":
    """Every checkpoint of --out, or of the run directory named instead."""
    from trivium.checkpoint.format import published

    if which is not None and not _is_run(Path(which)):
        raise ConfigError(f"--all: {which} names one checkpoint; leave out --all or {which}, or name a run directory")
    root = _checkpoints_of(out if which is None else directory_of(Path(which), out))
    found = published(root)
    if not found:
        raise CheckpointError(f"{root} holds no checkpoint; train first, or name another --out")
    return found


def _step(which: str) -> int | None:
    """The step that a number names, or the name of its directory where no such directory is here."""
    from trivium.checkpoint.format import step_of

    if which.isdecimal():
        return int(which)
    return None if Path(which).is_dir() else step_of(which)


def _path(which: str | None, out: Path) -> "Location":
    """The directory that a step, a path, or nothing (the newest) names."""
    from trivium.checkpoint.format import MANIFEST, published, step_name

    root = _checkpoints_of(out)
    if which is None:
        found = published(root)
        if not found:
            raise CheckpointError(f"{root} holds no checkpoint; train first, or name another --out")
        return found[-1]
    step = _step(which)
    path = Path(which) if step is None else root / step_name(step)
    if not (path.is_dir() if isinstance(path, Path) else (path / MANIFEST).is_file()):
        known = ", ".join(p.name for p in published(root)) or "none"
        raise CheckpointError(f"{path} is not there; the checkpoints of {root} are: {known}")
    return path


def _opened(path: "Location") -> "Checkpoint":
    from trivium.checkpoint.load import Checkpoint

    checkpoint = Checkpoint.open(path)
    checkpoint.verify()
    return checkpoint


def _write_json(path: Path | None, value: dict[str, Any]) -> None:
    from trivium.provenance import write_json

    if path is not None:
        write_json(path, value)
