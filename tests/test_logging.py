import json

from conftest import MakeConfig
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]  # no stubs

from rl_training.experiment.logging import RunLogger
from rl_training.experiment.runs import create_run_context
from rl_training.experiment.trackers.base import TrackedRun
from rl_training.experiment.trackers.opening import open_trackers


def test_json_lines_and_tensorboard_hold_the_same_numbers_over_env_steps(make_config: MakeConfig) -> None:
    config = make_config()
    context = create_run_context(config)
    logger = RunLogger(context, open_trackers(TrackedRun(context, config)))
    for step, loss in ((64, 0.5), (128, 0.25)):
        logger.log_metrics({"train/loss": loss}, step=step)
    logger.close()
    lines = [json.loads(line) for line in context.metrics_path.read_text().splitlines()]
    assert [(line["step"], line["train/loss"]) for line in lines] == [(64, 0.5), (128, 0.25)]
    events = EventAccumulator(str(context.tensorboard_dir))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == [(64, 0.5), (128, 0.25)]
