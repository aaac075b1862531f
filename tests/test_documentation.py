"""The documentation is true where a machine can tell: links, commands, options, config fields, and code that runs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from rl_training import TrainConfig
from rl_training.cli import main
from rl_training.experiment.config import with_resolved_params
from rl_training.experiment.search_space import read_space
from rl_training.experiment.sources import Layer
from rl_training.results.receipts import RECEIPTS_DIR, read_receipts
from rl_training.runtime.registry import get_algorithm_spec

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted(DOCS.glob("*.md"))]
RUN_PAGES = [ROOT / "README.md", DOCS / "python_api.md", DOCS / "algorithms.md", DOCS / "deployment.md"]
"""Their Python blocks are run; those of the other pages are compiled only."""

_FENCED = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```$", re.DOTALL | re.MULTILINE)
_BUDGET = re.compile(r"(?<=total_timesteps=)[0-9_]+|(?<=\.learn\()[0-9_]+")
_FILE_NAME = re.compile(r"# (\w+\.py)\n")
_OPTION = re.compile(r"--[a-z][a-z-]*")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a page in one language."""
    return [body for found, body in _FENCED.findall(page.read_text()) if found == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCED.sub("", page.read_text())


def code_spans(page: Path) -> list[str]:
    """The inline code of a page, each on one line."""
    return [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose(page))]


def typed_commands(page: Path) -> Iterator[list[str]]:
    """The words of every `rl-training ...` that a page shows, without comments."""
    lines = [line for body in blocks(page, "console") for line in body.splitlines()]
    for line in [*lines, *code_spans(page)]:
        _, found, arguments = line.partition("rl-training ")
        if found and "pip install" not in line:
            yield arguments.partition("#")[0].split()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str]) -> "Help":
    return Help(capsys)


class Help:
    """What the command line says about itself."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def _text(self, *command: str) -> str:
        self._capsys.readouterr()
        assert main([*command, "--help"]) == 0
        return self._capsys.readouterr().out

    def commands(self) -> set[str]:
        return set(re.findall(r"^  ([a-z][a-z-]*)  ", self._text().partition("Options:")[0], re.MULTILINE))

    def options(self, *command: str) -> set[str]:
        return set(_OPTION.findall(self._text(*command)))


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_readme_counts_the_receipts() -> None:
    (count,) = re.findall(r"\*\*Receipts\.\*\* (\d+) presets", (ROOT / "README.md").read_text())
    assert int(count) == len(read_receipts(RECEIPTS_DIR))


def test_the_index_links_to_every_page() -> None:
    linked = set(re.findall(r"\]\((\w+\.md)\)", (DOCS / "README.md").read_text()))
    assert linked == {page.name for page in DOCS.glob("*.md")} - {"README.md"}


@every_page
def test_links_point_to_files_and_headings_that_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_readme_lists_every_command(help_of: Help) -> None:
    table = re.findall(r"^\| `rl-training ([a-z-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert set(table) == help_of.commands()


@every_page
def test_commands_and_their_options_exist(page: Path, help_of: Help) -> None:
    known = help_of.commands()
    for words in typed_commands(page):
        command = [word for word in words[:1] if re.fullmatch("[a-z][a-z-]*", word)]
        assert set(command) <= known, words
        given = {match for word in words for match in _OPTION.findall(word)}
        assert given <= help_of.options(*command), words


@every_page
def test_options_that_the_text_names_exist(page: Path, help_of: Help) -> None:
    known = set().union(*(help_of.options(command) for command in help_of.commands()))
    named = {match for span in code_spans(page) if span.startswith("--") for match in _OPTION.findall(span)}
    assert named <= known


@every_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = [line.removeprefix("$ ") for body in blocks(page, "console") for line in body.splitlines()]
    named = {line.split()[1] for line in [*shown, *code_spans(page)] if line.startswith("make ")}
    assert named <= targets


def check_space(body: str) -> None:
    space = yaml.safe_load(body)
    algo = "dqn" if "buffer_capacity" in space else "ppo"
    config = TrainConfig(algo=algo, env_id="CartPole-v1")
    read_space(Layer("space", space), with_resolved_params(config, get_algorithm_spec(algo).resolve_params_fn(config)))


@every_page
def test_configs_are_accepted(page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, body in enumerate(blocks(page, "yaml")):
        if page.name == "tuning.md":
            check_space(body)
            continue
        config = tmp_path / f"{number}.yaml"
        config.write_text(body)
        code = main(["train", "--config", str(config), "--dry-run"])
        lacks_extra = "needs an extra: pip install 'rl-training[" in capsys.readouterr().err  # the config is fine
        assert code == 0 or lacks_extra


def test_the_configuration_page_lists_every_field() -> None:
    section = (DOCS / "configuration.md").read_text().partition("## Fields")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(TrainConfig.model_fields)


@pytest.mark.parametrize(
    ("algo", "titles"),
    [("ppo", ["PPO"]), ("dqn", ["DQN and SAC", "DQN"]), ("sac", ["DQN and SAC", "SAC"])],
    ids=["ppo", "dqn", "sac"],
)
def test_the_algorithms_page_lists_every_parameter(algo: str, titles: list[str]) -> None:
    parts = (DOCS / "algorithms.md").read_text().split("\n## ")
    sections = {title: body for title, _, body in (part.partition("\n") for part in parts)}
    text = "".join(sections[title] for title in ("All algorithms", *titles))
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    named = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(get_algorithm_spec(algo).params_model.model_fields)


@every_page
def test_python_blocks_compile(page: Path) -> None:
    for body in blocks(page, "python"):
        compile(body, page.name, "exec")


@pytest.mark.parametrize("page", RUN_PAGES, ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, as they stand but for budgets, of which a hundredth is used; named files are written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, object] = {}
    for body in blocks(page, "python"):
        named = _FILE_NAME.match(body)
        if named:
            Path(named[1]).write_text(body)
            continue
        assert _BUDGET.search(body) or ".learn(" not in body, "a block that trains must name its budget"
        exec(compile(_BUDGET.sub(lambda budget: str(int(budget[0]) // 100), body), page.name, "exec"), names)
