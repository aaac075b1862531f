"""The command classes and exit codes: help in plain text under headings.

Help has neither boxes nor colours, so that it looks the same on a terminal, in a pipe and in a pager.
"""

from collections.abc import Iterable
from typing import Any

from typer.core import TyperCommand, TyperGroup

FAILED = 1
USER_ERROR = 2

_EXAMPLES = "\n\nExamples:\n"


class HelpfulCommand(TyperCommand):
    """A command whose docstring may end with a section `Examples:`, which the help shows last."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show a required argument as `NAME`, where typer shows `{NAME}`."""
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring without its examples."""
        del ctx
        _write_text(formatter, self.help)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options under their headings."""
        _write_parameters(ctx, formatter, self.get_params(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        del ctx
        _write_examples(formatter, self.help)


class CommandGroup(TyperGroup):
    """The program itself: its commands under headings, then its options and examples."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write the docstring without its examples."""
        del ctx
        _write_text(formatter, self.help)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        self.format_commands(ctx, formatter)
        _write_parameters(ctx, formatter, self.get_params(ctx))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write one line per command under the heading of its panel; all lines have the same indentation."""
        del ctx
        width = max(map(len, self.commands))
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            heading = getattr(command, "rich_help_panel", None) or "Commands"
            row = (name.ljust(width), command.get_short_help_str(formatter.width))
            sections.setdefault(heading, []).append(row)
        _write_sections(formatter, sections)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        del ctx
        _write_examples(formatter, self.help)


def _write_text(formatter: Any, docstring: str | None) -> None:
    formatter.write_paragraph()
    with formatter.indentation():
        formatter.write_text((docstring or "").partition(_EXAMPLES)[0])


def _write_examples(formatter: Any, docstring: str | None) -> None:
    lines = (docstring or "").partition(_EXAMPLES)[2].splitlines()
    if lines:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line.strip()}\n" for line in lines))


def _write_parameters(ctx: Any, formatter: Any, parameters: Iterable[Any]) -> None:
    """Write each parameter under its panel; those without one come last, because `--help` is among them."""
    sections: dict[str, list[tuple[str, str]]] = {}
    others: list[tuple[str, str]] = []
    for parameter in parameters:
        name, text = parameter.get_help_record(ctx)
        if parameter.param_type_name == "argument":
            sections.setdefault("Arguments", []).append((name.partition(" ")[0], text))
        else:
            panel = parameter.rich_help_panel
            (sections.setdefault(panel, []) if panel else others).append((name, text))
    _write_sections(formatter, {**sections, "Options": others})


def _write_sections(formatter: Any, sections: dict[str, list[tuple[str, str]]]) -> None:
    for heading, rows in sections.items():
        with formatter.section(heading):
            formatter.write_dl(rows)
