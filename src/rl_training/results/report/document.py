"""The parts that every page shares: a document that contains its styles and script, sections, films and facts."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rl_training.results.report.facts import Fact
from rl_training.results.report.markup import Content, Markup, element
from rl_training.results.report.model import Animation
from rl_training.results.report.tables import Column, table

_HERE = Path(__file__).parent


def render_document(title: str, header: Markup, sections: Iterable[Markup]) -> str:
    """Render a whole page. Its content security policy allows no external files and only the script inside."""
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    policy = f"default-src 'none'; img-src data:; style-src {_csp_hash(style)}; script-src {_csp_hash(script)}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(style)),
    )
    body = element("body", header, element("main", list(sections)), element("script", Markup(script)))
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def page_header(title: str, about: str, notes: Iterable[str]) -> Markup:
    """Build the head of a page: its title, a line about it, and notes."""
    items = [element("li", note) for note in notes]
    return element(
        "header",
        element("h1", title),
        element("p", about, class_="quiet"),
        element("ul", items, class_="notes", aria_label="Notes") if items else None,
    )


def section(title: str, *content: Content) -> Markup:
    """Build a section with a heading."""
    name = title.lower().replace(" ", "-")
    return element("section", element("h2", title, id=name), *content, aria_labelledby=name)


def agent(animation: Animation | str) -> Markup:
    """Show the film of an agent, or say why there is none."""
    if isinstance(animation, str):
        return element("p", f"No film: {animation}")
    width, height = animation.size
    still = element(
        "source", srcset=_data_url(animation.still), media="(prefers-reduced-motion: reduce)", type="image/png"
    )
    film = element("img", src=_data_url(animation.png), alt=animation.caption, width=width, height=height)
    return element("figure", element("picture", still, film), element("figcaption", animation.caption), class_="film")


def _data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def status_text(status: str) -> Markup:
    """Show a status in its colour. A paused trial is neither good nor open."""
    tone = {"completed": "good", "stopped": "good", "failed": "bad", "paused": "quiet"}.get(status, "open")
    return element("span", status, class_=f"status {tone}")


def command_box(command: str) -> Markup:
    """Show a command; a script adds a button that copies it."""
    return element("pre", element("code", command), class_="command", tabindex=0)


def folded_text(summary: str, text: str) -> Markup:
    """Show a text that is hidden until the reader opens it."""
    return element("details", element("summary", summary), element("pre", element("code", text), tabindex=0))


def facts_table(facts: Sequence[Fact]) -> Markup:
    """Show versions and machine."""
    rows: list[list[Content]] = []
    for fact in facts:
        values = [f"{value} ({holders})" if holders else value for value, holders in fact.values]
        rows.append([fact.name, [element("div", value) for value in values]])
    if not rows:
        return element("p", "Versions and machine were not recorded.")
    return table("As recorded at the start", [Column("name"), Column("value")], rows)
