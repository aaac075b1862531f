"""`benchmark`: train shipped presets over seeds, and write or verify their receipts."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.cli.command import FAILED
from rl_training.cli.completion import complete_preset, complete_suite
from rl_training.cli.options import AUTO_JOBS, MANY_SEEDS, OUTPUT, WHAT_TO_TRAIN, OnOption
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.groups.benchmarking import BenchmarkOptions
    from rl_training.results.receipts import Receipt


SuiteArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="SUITE",
        autocompletion=complete_suite,
        help="A suite (classic, toy_text, box2d, mujoco, atari or third_party), or a preset such as ppo/cartpole.",
    ),
]
VerifyOption = Annotated[
    str | None,
    typer.Option(
        metavar="PRESET",
        autocompletion=complete_preset,
        rich_help_panel=WHAT_TO_TRAIN,
        help="Train this preset again and compare the result with its receipt.",
    ),
]
AgainOption = Annotated[
    bool,
    typer.Option(
        "--again", rich_help_panel=WHAT_TO_TRAIN, help="Train every preset, even if its receipt is up to date."
    ),
]
EpisodesOption = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=WHAT_TO_TRAIN,
        help="How many episodes each final agent is evaluated on.",
    ),
]
SeedsOption = Annotated[
    str, typer.Option(metavar="SEEDS", rich_help_panel=MANY_SEEDS, help="The seeds, such as 1-5 or 1,2,7.")
]
JobsOption = Annotated[
    str,
    typer.Option(
        metavar="N",
        rich_help_panel=MANY_SEEDS,
        help=f"How many seeds to train at the same time: a number, or {AUTO_JOBS}.",
    ),
]
OutputDirOption = Annotated[
    Path, typer.Option(metavar="DIR", rich_help_panel=OUTPUT, help="Where to create the run directories.")
]
ReceiptsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        rich_help_panel=OUTPUT,
        help="The directory of the receipts: by default receipts/, or the shipped receipts for --verify.",
    ),
]
DocumentOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Also write a Markdown page about all stored receipts."),
]


def benchmark(
    suite: SuiteArgument = None,
    verify: VerifyOption = None,
    again: AgainOption = False,
    episodes: EpisodesOption = 100,
    seeds: SeedsOption = "1-5",
    jobs: JobsOption = "auto",
    on: OnOption = "here",
    output_dir: OutputDirOption = Path("runs/benchmark"),
    receipts: ReceiptsOption = None,
    document: DocumentOption = None,
) -> int:
    """Train shipped presets over seeds and write or verify receipts.

    A receipt is a small file that stores the return of every seed, together with the versions and the hardware.
    The exit code of --verify is 1 if the new result does not confirm the receipt.

    Examples:
        rl-training benchmark classic
        rl-training benchmark --verify ppo/cartpole
    """
    from rl_training.cli.seeds import parse_jobs
    from rl_training.experiment.groups import parse_seeds
    from rl_training.groups.benchmarking import BenchmarkOptions

    if (suite is None) == (verify is None):
        raise ConfigError("give a suite such as classic, a preset such as ppo/cartpole, or --verify PRESET")
    options = BenchmarkOptions(parse_seeds(seeds), parse_jobs(jobs), episodes, output_dir, on=on)
    if verify is not None:
        return _verify(verify, options, receipts)
    return _measure(str(suite), options, receipts or Path("receipts"), document=document, again=again)


def _measure(suite: str, options: "BenchmarkOptions", directory: Path, *, document: Path | None, again: bool) -> int:
    from rl_training.cli.console import show_receipts
    from rl_training.cli.group_progress import GroupDisplay
    from rl_training.groups.benchmarking import measure_preset, presets_of
    from rl_training.results.receipts import read_receipts, write_receipt
    from rl_training.results.receipts_page import write_page

    presets = presets_of(suite)
    for preset in presets:
        if not again and _up_to_date(preset, options, directory):
            typer.echo(f"{preset}: its receipt is up to date (use --again to train it anyway)")
            continue
        path = write_receipt(directory, measure_preset(preset, options, GroupDisplay()))
        typer.echo(f"{preset}: {path}")
    found = read_receipts(directory)
    show_receipts([receipt for receipt in found if receipt.preset in presets])
    if document is not None:
        write_page(document, found)
    return 0


def _up_to_date(preset: str, options: "BenchmarkOptions", directory: Path) -> bool:
    from rl_training.results.receipts import preset_digest, read_receipt, receipt_path

    path = receipt_path(directory, preset)
    if not path.exists():
        return False
    receipt: Receipt = read_receipt(path)
    seeds = {score.seed for score in receipt.scores}
    is_enough = receipt.eval_episodes >= options.episodes and seeds >= set(options.seeds)
    return is_enough and receipt.preset_sha256 == preset_digest(preset)


def _verify(preset: str, options: "BenchmarkOptions", directory: Path | None) -> int:
    from rl_training.cli.console import show_receipts
    from rl_training.cli.group_progress import GroupDisplay
    from rl_training.groups.benchmarking import measure_preset
    from rl_training.results.receipts import (
        RECEIPTS_DIR,
        ReceiptCheck,
        preset_digest,
        preset_path,
        read_receipt,
        receipt_path,
    )

    preset_path(preset)
    path = receipt_path(directory or RECEIPTS_DIR, preset)
    if not path.exists():
        where = path.parent.parent
        raise ConfigError(f"{preset} has no receipt in {where}: write one with `rl-training benchmark {preset}`")
    stored = read_receipt(path)
    if stored.preset_sha256 != preset_digest(preset):
        typer.echo(f"{preset} has changed since its receipt was written", err=True)
    # `auto` would decide by the cost of compiling on this machine; the receipt's own mode makes results comparable.
    repeated = measure_preset(preset, replace(options, compile=stored.compile), GroupDisplay())
    found = ReceiptCheck(stored, repeated)
    show_receipts([found.stored, found.repeated])
    typer.echo(found.sentence)
    return 0 if found.holds else FAILED
