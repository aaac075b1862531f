"""Opening what collects the experience of a run, in the place that the config names."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial

from rl_training.algorithms.base import OffPolicyLearner, OnPolicyLearner
from rl_training.envs.factory import check_num_envs, make_env, make_vector_env
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.collector import Collector, make_collector
from rl_training.runtime.grouped_collector import GroupedCollector, Places, split_envs
from rl_training.runtime.learners import LearnerFactory, LearnerT, ParamsT
from rl_training.runtime.places import GroupProcesses, GroupsHere
from rl_training.runtime.ray_places import GroupsOnRay
from rl_training.runtime.shares import EnvGroup, RemoteGroup

AnyLearner = OnPolicyLearner | OffPolicyLearner


@contextmanager
def open_collector(
    config: TrainConfig, factory: LearnerFactory[ParamsT, LearnerT]
) -> Iterator[tuple[LearnerT, Collector]]:
    """Make the learner and, in the place that the config names, what collects its experience."""
    if config.collectors == 1 and config.collect_on == "here":
        with closing(make_vector_env(config)) as envs:
            learner = factory.build(config, envs.single_observation_space, envs.single_action_space)
            yield learner, make_collector(config, learner, envs)
        return
    check_num_envs(config)
    with closing(make_env(config, 0)) as env:  # raises a clear error for wrong arguments
        spaces = env.observation_space, env.action_space
    learner = factory.build(config, *spaces)
    groups = split_envs(config.num_envs, config.collectors)
    with closing(_open_places(config, factory, learner, groups)) as places:
        yield learner, GroupedCollector(places, learner.policy, groups, spaces, max_restarts=config.env_restarts)


def _open_places(
    config: TrainConfig, factory: LearnerFactory[ParamsT, LearnerT], learner: LearnerT, groups: Sequence[range]
) -> Places:
    if config.collect_on == "here":
        return _open_groups_here(config, learner, groups)
    open_groups = GroupProcesses if config.collect_on == "processes" else GroupsOnRay
    return open_groups([partial(RemoteGroup, config, factory, envs) for envs in groups], config)


def _open_groups_here(config: TrainConfig, learner: AnyLearner, groups: Sequence[range]) -> GroupsHere:
    with ExitStack() as opened:
        made = []
        for envs in groups:
            vector_env = opened.enter_context(closing(make_vector_env(config, envs)))
            made.append(EnvGroup(make_collector(config, learner, vector_env), envs.start, learner.policy))
        return GroupsHere(made, opened.pop_all().close)
