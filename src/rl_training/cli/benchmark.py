"""`benchmark`: train shipped presets over seeds, keep receipts, and check stored ones."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.groups.benchmarking import BenchmarkOptions
    from rl_training.results.receipts import Receipt


def benchmark(
    suite: Annotated[
        str | None,
        typer.Argument(metavar="[SUITE]", help="classic, box2d, mujoco, or a preset such as ppo/cartpole."),
    ] = None,
    verify: Annotated[
        str | None, typer.Option(metavar="PRESET", help="Train this one again and compare with its stored receipt.")
    ] = None,
    seeds: Annotated[str, typer.Option(help="Such as 1-5 or 1,2,7.")] = "1-5",
    jobs: Annotated[str, typer.Option(help="Seeds at once: auto, or a number.")] = "auto",
    episodes: Annotated[int, typer.Option(min=1, help="To evaluate every final agent over.")] = 100,
    output_dir: Annotated[Path, typer.Option(help="Where run directories go.")] = Path("runs/benchmark"),
    receipts: Annotated[Path | None, typer.Option(help="Where receipts are read and written.")] = None,
    document: Annotated[Path | None, typer.Option(help="Write a Markdown page of all receipts there are.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Train presets too whose receipt is up to date.")] = False,
) -> int:
    """Train shipped presets over seeds and write their receipts; with --verify, check a stored one."""
    from rl_training.cli.seeds import parse_jobs
    from rl_training.experiment.groups import parse_seeds
    from rl_training.groups.benchmarking import BenchmarkOptions

    if (suite is None) == (verify is None):
        raise ConfigError("give a suite (classic, box2d, mujoco) or a preset to measure, or --verify PRESET")
    options = BenchmarkOptions(parse_seeds(seeds), parse_jobs(jobs), episodes, output_dir)
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
            typer.echo(f"{preset}: its receipt is up to date (--again trains it all the same)")
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
    return receipt.preset_sha256 == preset_digest(preset) and seeds >= set(options.seeds)


def _verify(preset: str, options: "BenchmarkOptions", directory: Path | None) -> int:
    from rl_training.cli.console import show_receipts
    from rl_training.cli.group_progress import GroupDisplay
    from rl_training.groups.benchmarking import measure_preset
    from rl_training.results.receipts import (
        RECEIPTS_DIR,
        Verification,
        preset_digest,
        preset_path,
        read_receipt,
        receipt_path,
    )

    preset_path(preset)
    path = receipt_path(directory or RECEIPTS_DIR, preset)
    if not path.exists():
        where = path.parent.parent
        raise ConfigError(f"{preset} has no receipt in {where}: measure it with `rl-training benchmark {preset}`")
    stored = read_receipt(path)
    if stored.preset_sha256 != preset_digest(preset):
        typer.echo(f"{preset} has changed since its receipt was written", err=True)
    # In the mode that the receipt was measured in: `auto` decides by what compiling costs here.
    repeated = measure_preset(preset, replace(options, compile=stored.compile), GroupDisplay())
    found = Verification(stored, repeated)
    show_receipts([found.stored, found.repeated])
    typer.echo(found.sentence)
    return 0 if found.holds else 1
