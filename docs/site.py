"""MkDocs hooks: add the pages that are generated from the code and from files outside docs/."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "benchmarks" / "reports"
CLI_HELP_COLUMNS = 100


def on_files(files: Files, config: Any) -> Files:
    """Add the README as the first page, CONTRIBUTING, the dated reports, and the references of CLI and config."""
    pages = {
        "index.md": (ROOT / "README.md")
        .read_text()
        .replace("](docs/", "](")
        .replace("](benchmarks/", "](")
        .replace("CONTRIBUTING.md", "contributing.md"),
        "contributing.md": (ROOT / "CONTRIBUTING.md").read_text().replace("](docs/", "]("),
        "reports/index.md": "# Reports\n\n"
        + "\n".join(f"- [{p.stem}]({p.name})" for p in sorted(REPORTS.glob("*.md"))),
        "reference/config.md": config_reference(),
        "reference/cli.md": cli_reference(),
        "reference/scale.md": scale_page(),
    }
    pages |= {f"reports/{p.name}": p.read_text().replace("](../../docs/", "](../") for p in REPORTS.glob("*.md")}
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    for path in REPORTS.glob("*.json"):
        files.append(File.generated(config, f"reports/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links that leave docs/ to the pages that this file adds."""
    up = "../" * page.file.src_uri.count("/")
    targets = {"benchmarks/reports": "reports/index.md", "README.md": "index.md", "CONTRIBUTING.md": "contributing.md"}
    for source, target in targets.items():
        markdown = re.sub(rf"\]\((?:\.\./)+{source}(?=[)#])", f"]({up}{target}", markdown)
    return re.sub(r"\]\((?:\.\./)+benchmarks/reports/", f"]({up}reports/", markdown).replace("](LICENSE)", "]")


def config_reference() -> str:
    """Return a table of every field of a run's config, a section each."""
    from trivium.cli.fields import fields_of
    from trivium.cli.run_config import RunConfig

    lines, section = ["# Config", "", "Set a field with `--set PATH=VALUE` or in a preset."], ""
    for field in fields_of(RunConfig):
        first = field.path.split(".")[0]
        if first != section:
            section = first
            lines += ["", f"## {section}", "", "| field | may be | meaning |", "| --- | --- | --- |"]
        cells = (f"`{field.path}`", *(str(cell).replace("|", "\\|").replace("\n", " ") for cell in field[1:]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def scale_page() -> str:
    """Return the counts of large jobs by benchmarks/scale.py."""
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks" / "scale.py")
    assert spec is not None and spec.loader is not None, f"{ROOT / 'benchmarks' / 'scale.py'} is missing"
    module = importlib.util.module_from_spec(spec)
    sys.modules["scale"] = module
    spec.loader.exec_module(module)
    return str(module.page())


def cli_reference() -> str:
    """Return the help text of every command."""
    import typer

    from trivium.cli.main import command_line

    def texts(command: Any, words: list[str], parent: Any) -> list[str]:
        context = typer.Context(command, parent, words[-1], terminal_width=CLI_HELP_COLUMNS)
        names = command.list_commands(context) if hasattr(command, "list_commands") else []
        own = [f"## {' '.join(words)}", "", "```", command.get_help(context), "```", ""]
        under = [(name, command.resolve_command(context, [name])[1]) for name in names]
        return own + [line for name, each in under for line in texts(each, [*words, name], context)]

    return "\n".join(["# Commands", "", *texts(command_line(), ["trivium"], None)])
