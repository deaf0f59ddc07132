"""Embed scripts and data in a page so that data cannot leave its element and the page needs no network."""

import base64
import hashlib
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader
from markupsafe import Markup

from trivium.finite import dumps
from trivium.units import plain


def embedded_json(value: Any) -> str:
    """Serialize plain data as JSON that cannot close a script element."""
    text = dumps(value, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def policy(*scripts: str, functions_from_text: bool = False) -> str:
    """Return a content security policy that allows only these scripts, by hash, and no network access."""
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    more = " 'unsafe-eval'" if functions_from_text else ""
    return (
        f"default-src 'none'; script-src {allowed}{more}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )


def render_page(
    template: str, script: str, *libraries: str, package: str = "trivium.report", title: str, **values: Any
) -> str:
    """Render a page that needs no network; all data is escaped. package: the one that has the template. script: the
    template of the page's own script. libraries: the scripts that it needs. values: of the template."""
    environment = environment_of_pages()
    if package != "trivium.report":
        environment.loader = ChoiceLoader([PackageLoader(package), PackageLoader("trivium.report")])
    scripts = [*libraries, str(environment.get_template(script).render())]
    return environment.get_template(template).render(
        title=title,
        scripts=[Markup(text) for text in scripts],
        # Plotly compiles functions from strings for some figures, and adds inline styles.
        policy=policy(*scripts, functions_from_text=bool(libraries)),
        **values,
    )


def environment_of_pages() -> Environment:
    """Return the template environment. Data is escaped and stripped of terminal control sequences, because pages are
    also viewed in terminals."""
    return Environment(
        loader=PackageLoader("trivium.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
