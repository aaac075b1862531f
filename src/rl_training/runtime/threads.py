"""Choose the number of threads for `num_threads: auto`, by timing a matrix product with one thread and all cores.

The product is as large as the largest part of an update: the widest hidden layer, or an encoder such as a CNN.
"""

import math
import time
from contextlib import closing

import torch

from rl_training.algorithms.base import LearnerParams
from rl_training.cores import available_cores
from rl_training.envs.factory import make_env
from rl_training.experiment.config import TrainConfig
from rl_training.policies.features import Encoder
from rl_training.runtime.run_utils import limited_threads

_TRIALS = 15
_TRIAL_SECONDS = 2e-3
_MAX_ROWS, _MAX_WIDTH = 2_048, 1_024  # of the timed product: larger ones take more time and memory for the same answer
_MIN_SPEEDUP = 1.3  # several threads must be this many times as fast, because they take cores from other processes


def resolve_threads(config: TrainConfig, params: LearnerParams) -> tuple[TrainConfig, str | None]:
    """Return the config with `num_threads: auto` replaced by a choice, and the reason for the choice."""
    if config.num_threads != "auto":
        return config, None
    width = max(params.widest_layer, _encoder_width(config, params))
    threads, reason = choose_threads(params.rows_per_step, width, available_cores())
    return config.model_copy(update={"num_threads": threads}), f"{threads}: {reason}"


def _encoder_width(config: TrainConfig, params: LearnerParams) -> int:
    """Return the size of a square layer that takes as many multiplications per observation as the encoder."""
    with closing(make_env(config, 0)) as env:
        encoder = Encoder(env.observation_space)
    return math.isqrt(params.network_spec(torch.device("cpu")).count_encoder_products(encoder))


def choose_threads(rows: int, width: int, cores: int) -> tuple[int, str]:
    """Choose one thread or all cores by timing the product of `rows` features with a square layer."""
    if cores == 1:
        return 1, "one core"
    rows, width = min(rows, _MAX_ROWS), min(width, _MAX_WIDTH)
    one, many = (_product_seconds(rows, width, threads) for threads in (1, cores))
    reason = f"a product of {rows}x{width} with {width}x{width} takes {1e6 * one:.0f} us on 1 thread, "
    return cores if one > _MIN_SPEEDUP * many else 1, f"{reason}{1e6 * many:.0f} us on {cores}"


def _product_seconds(rows: int, width: int, threads: int) -> float:
    """Return the fastest of several trials, because other programs may slow some of them down."""
    features, weights, products = torch.ones(rows, width), torch.ones(width, width), torch.empty(rows, width)
    best = math.inf
    with limited_threads(threads):
        for _ in range(_TRIALS):
            began, count = time.perf_counter(), 0
            while time.perf_counter() - began < _TRIAL_SECONDS:
                torch.mm(features, weights, out=products)
                count += 1
            best = min(best, (time.perf_counter() - began) / count)
    return best
