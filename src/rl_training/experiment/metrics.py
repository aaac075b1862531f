"""Names of metrics: in results (`eval_return_mean`), in logs (`eval/mean_reward`), and from users (`return`)."""

from collections.abc import Mapping

EVALUATION = "eval/mean_reward"
TRAINING = "rollout/ep_rew_mean"
SUCCESS_RATE = "success_rate"
RETURN = "return"
"""The short name of the mean return of an evaluation."""

_LOGGED_AS = {"eval_return_mean": EVALUATION, "eval_return_std": "eval/std_reward"}
_LOGGED_AS["eval_length_mean"] = "eval/mean_ep_length"
_NOT_LOGGED = ("eval_return_min", "eval_return_max", "eval_episodes")

TAKEN_NAMES = {
    RETURN,
    "cut_episodes",
    "ep_rew_mean",
    "ep_len_mean",
    *(name.removeprefix("eval_") for name in (*_LOGGED_AS, *_NOT_LOGGED)),
    *(name.removeprefix("eval/") for name in _LOGGED_AS.values()),
}
"""Names that an environment cannot give to its own numbers."""


def logged_evaluation(metrics: Mapping[str, int | float]) -> dict[str, int | float]:
    """Return the metrics of an evaluation under the names by which they are logged, without those that are not."""
    logged = {name: value for name, value in metrics.items() if name not in _NOT_LOGGED}
    return {_LOGGED_AS.get(name, name.replace("eval_", "eval/", 1)): value for name, value in logged.items()}


def logged_name(given: str) -> str:
    """Return the logged name of an evaluation metric that a user gave as `return`, `NAME` or `eval/NAME`."""
    name = given.removeprefix("eval/")
    return EVALUATION if name == RETURN else f"eval/{name}"


def result_name(given: str) -> str:
    """Return the name in a run's result of an evaluation metric that a user gave as `return`, `NAME` or `eval/NAME`."""
    logged = logged_name(given)
    return next((name for name, other in _LOGGED_AS.items() if other == logged), logged.replace("/", "_", 1))


def describe_missing(given: str, metrics: Mapping[str, int | float]) -> str:
    """Say that an evaluation has no metric of the name that a user gave, and which ones it has."""
    names = [name.removeprefix("eval/") for name in logged_evaluation(metrics)]
    return f"'{given}' is not in the evaluation; it has {', '.join([RETURN, *names])}"
