"""`tune`: search for better parameters of an algorithm, or continue a search."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_training.cli.command import FAILED
from rl_training.cli.completion import complete_run
from rl_training.cli.configs import resolve
from rl_training.cli.options import AUTO_JOBS, BUDGET, OUTPUT, WHAT_TO_TRAIN, Assignments, TrustOption, on_option
from rl_training.cli.seeds import admit_env, parse_jobs
from rl_training.cli.train import (
    AlgorithmOption,
    ConfigOption,
    EnvOption,
    OutputDirOption,
    SeedOption,
    TotalTimestepsOption,
    flag_layer,
    read_config_file,
)
from rl_training.errors import ConfigError, TrainingInterrupted
from rl_training.trust import guarded_imports

if TYPE_CHECKING:
    from rl_training.groups.places import Place
    from rl_training.groups.tuning import PreparedStudy

HOW_TO_SEARCH = "How to search"

ActionArgument = Annotated[
    str | None, typer.Argument(metavar="resume", help="Continue a study instead of starting a new one.")
]
StudyArgument = Annotated[
    Path | None, typer.Argument(metavar="STUDY", autocompletion=complete_run, help="The directory of that study.")
]
SpaceOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=WHAT_TO_TRAIN,
        help="A YAML file with the search space. The default is the shipped space of the algorithm.",
    ),
]
TrialsOption = Annotated[
    int | None, typer.Option(metavar="N", rich_help_panel=BUDGET, help="The number of trials (default 30).")
]
RungsOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=BUDGET,
        help="At how many budgets trials are compared (default 3); 1 trains every trial to the end.",
    ),
]
ReductionOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=BUDGET,
        help="One in N trials of a rung is promoted to the next, whose budget is N times as large (default 3).",
    ),
]
ConfirmOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=BUDGET,
        help="On how many new seeds the best trial is compared with the starting config (default 5); 0 for none.",
    ),
]
JobsOption = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        rich_help_panel=BUDGET,
        help=f"How many runs to train at the same time: a number, or {AUTO_JOBS} (the default).",
    ),
]
OnOption = Annotated[str, on_option(BUDGET)]
SamplerOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=HOW_TO_SEARCH,
        help="How the values of a new trial are chosen: tpe (the default), random, cmaes or grid.",
    ),
]
SeedsPerTrialOption = Annotated[
    int | None,
    typer.Option(metavar="N", rich_help_panel=HOW_TO_SEARCH, help="How many runs each trial has (default 1)."),
]
EpisodesOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        rich_help_panel=HOW_TO_SEARCH,
        help="How many evaluation episodes the value of a run is measured on (default 20).",
    ),
]
SearchSeedOption = Annotated[
    int | None,
    typer.Option(metavar="SEED", rich_help_panel=HOW_TO_SEARCH, help="The seed for choosing values (default 0)."),
]
StorageOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        rich_help_panel=OUTPUT,
        help="An Optuna storage for the trials, such as sqlite:///tune.db, instead of a file in the study directory.",
    ),
]


def tune(
    action: ActionArgument = None,
    study: StudyArgument = None,
    config: ConfigOption = None,
    algo: AlgorithmOption = None,
    env: EnvOption = None,
    seed: SeedOption = None,
    assignments: Assignments = None,
    space: SpaceOption = None,
    total_timesteps: TotalTimestepsOption = None,
    trials: TrialsOption = None,
    rungs: RungsOption = None,
    reduction: ReductionOption = None,
    confirm: ConfirmOption = None,
    jobs: JobsOption = None,
    on: OnOption = "here",
    sampler: SamplerOption = None,
    seeds_per_trial: SeedsPerTrialOption = None,
    episodes: EpisodesOption = None,
    search_seed: SearchSeedOption = None,
    storage: StorageOption = None,
    output_dir: OutputDirOption = None,
    trust: TrustOption = False,
) -> int:
    """Search for better parameters of an algorithm.

    Trials begin with a part of the budget; the best ones are promoted and continue from their checkpoints. At the end,
    the best trial and the config it started from are trained on new seeds, and compared.

    Examples:
        rl-training tune --algo dqn --env LunarLander-v3 --trials 60
        rl-training tune --config my.yaml --space my_space.yaml --seeds-per-trial 3
        rl-training tune resume runs/STUDY
    """
    search = _given(
        sampler=sampler, rungs=rungs, reduction=reduction, episodes=episodes, seeds_per_trial=seeds_per_trial
    )
    search |= _given(trials=trials, confirm=confirm, seed=search_seed, storage=storage)
    flags = {"algo": algo, "env_id": env, "total_timesteps": total_timesteps, "seed": seed, "output_dir": output_dir}
    if action is None:
        return _start(config, flags, assignments or [], space, jobs or "auto", on, search, trust=trust)
    if action != "resume" or study is None:
        raise ConfigError(f"tune {action}: give options for a new study, or `tune resume STUDY`")
    if config or space or assignments or _given(**flags) or search.keys() - {"trials"}:
        raise ConfigError("a study can only be resumed with --trials, --on, --jobs and --trust")
    return resume_study(study, jobs, on, trials, trust=trust)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _start(
    config: Path | None,
    flags: dict[str, Any],
    assignments: list[str],
    space: Path | None,
    jobs: str,
    on: str,
    search: dict[str, Any],
    *,
    trust: bool,
) -> int:
    from rl_training.experiment.sources import read_assignments
    from rl_training.experiment.studies import StudyOptions
    from rl_training.groups.places import open_place
    from rl_training.groups.tuning import prepare_study

    layers = [*read_config_file(config, flags["algo"], flags["env_id"]), flag_layer(flags)]
    resolved, _ = resolve([*layers, read_assignments(assignments)])
    with guarded_imports(config, resolved.typed_code, trust=trust):
        admit_env(resolved.config)
        with open_place(on, resolved.config) as place:
            study = prepare_study(resolved.config, space, parse_jobs(jobs), StudyOptions(**search), place)
            return _run(study, place)


def resume_study(study_dir: Path, jobs: str | None, on: str, trials: int | None, *, trust: bool) -> int:
    """Continue a study where it was interrupted, with more trials if they are given."""
    from rl_training.cli.tune_progress import show_study
    from rl_training.groups.places import open_place, place_name
    from rl_training.groups.tuning import is_complete, reopen_study

    with guarded_imports(study_dir, [], trust=trust):
        study = reopen_study(study_dir, None if jobs is None else parse_jobs(jobs), on=place_name(on), trials=trials)
        if is_complete(study):
            show_study(study.study_dir, study.settings, study.record)
            return 0
        admit_env(study.settings.train_config)
        with open_place(on, study.settings.train_config) as place:
            return _run(study, place)


def _run(study: "PreparedStudy", place: "Place") -> int:
    from rl_training.cli.tune_progress import StudyDisplay, show_study
    from rl_training.experiment.studies import read_study
    from rl_training.groups.tuning import run_study

    try:
        result = run_study(study, StudyDisplay(), place)
    except TrainingInterrupted:
        show_study(study.study_dir, study.settings, read_study(study.study_dir))
        raise
    show_study(result.study_dir, result.settings, result.record)
    return 0 if result.record.status == "completed" else FAILED
