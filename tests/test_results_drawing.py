"""Pictures of curves: what is on the axes, in both formats, and what is said when nothing can be drawn."""

import sys
import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from sample_runs import write_group, write_run
from test_progress import PNG_MAGIC

from rl_training.errors import ConfigError, RunDirectoryError
from rl_training.results.drawing import draw_groups, plot_groups
from rl_training.results.loading import load_groups


def drawn(*places: Path, metric: str = "eval/mean_reward", threshold: float | None = None) -> Axes:
    figure = draw_groups(load_groups(places), metric, threshold)
    figure.draw_without_rendering()  # a layout that does not fit would warn
    return figure.axes[0]


def bands(axes: Axes) -> list[PolyCollection]:
    return [part for part in axes.collections if isinstance(part, PolyCollection)]


def test_every_group_has_a_curve_a_band_and_its_seeds_as_thin_lines(tmp_path: Path) -> None:
    places = [write_group(tmp_path / "a", [10.0, 20.0, 30.0]), write_group(tmp_path / "b", [40.0, 50.0])]
    axes = drawn(*places, threshold=25.0)
    assert axes.get_legend_handles_labels()[1] == ["a (n = 3)", "b (n = 2)", "threshold 25.00"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("env steps", "evaluation return")
    assert axes.get_title() == "CartPole-v1: interquartile mean over seeds, 95 % interval shaded"
    curves = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in axes.lines}
    assert curves["a (n = 3)"] == [0.0, 20.0]
    assert curves["b (n = 2)"] == [0.0, 45.0]
    assert len(bands(axes)) == 2
    assert len(axes.lines) == (1 + 3) + (1 + 2) + 1


def test_one_run_is_a_line_without_a_band(tmp_path: Path) -> None:
    axes = drawn(write_run(tmp_path, 1, [1.0, 2.0]))
    assert not bands(axes)
    assert len(axes.lines) == 1


def test_many_seeds_are_shown_by_their_band_alone(tmp_path: Path) -> None:
    axes = drawn(write_group(tmp_path, list(range(11))))
    assert len(bands(axes)) == 1
    assert len(axes.lines) == 1


def test_a_curve_ends_where_the_first_seed_ends(tmp_path: Path) -> None:
    write_run(tmp_path, 1, [1.0, 2.0, 3.0])
    write_run(tmp_path, 2, [1.0, 4.0])
    middle, longer, shorter = drawn(tmp_path).lines
    assert np.asarray(middle.get_xdata()).tolist() == [1_000.0, 2_000.0]
    assert [len(np.asarray(line.get_xdata())) for line in (longer, shorter)] == [3, 2]


def test_any_logged_metric_can_be_drawn_and_others_are_refused_with_those_there_are(tmp_path: Path) -> None:
    write_group(tmp_path, [1.0, 2.0])
    assert drawn(tmp_path, metric="rollout/ep_rew_mean").get_ylabel() == "training return"
    assert drawn(tmp_path, metric="eval/std_reward").get_ylabel() == "eval/std_reward"
    with pytest.raises(ConfigError, match="no metric 'loss': choose from eval/mean_reward, eval/std_reward, rollout/"):
        drawn(tmp_path, metric="loss")


def test_environments_do_not_share_a_picture(tmp_path: Path) -> None:
    write_run(tmp_path, 1, [1.0])
    write_run(tmp_path, 1, [1.0], env_id="Acrobot-v1")
    with pytest.raises(RunDirectoryError, match="runs on Acrobot-v1, CartPole-v1: make a plot for each environment"):
        drawn(tmp_path)


def test_the_suffix_decides_the_format(tmp_path: Path) -> None:
    groups = load_groups([write_group(tmp_path / "runs", [1.0, 2.0])])
    plot_groups(groups, tmp_path / "curves.png")
    plot_groups(groups, tmp_path / "curves.svg")
    assert (tmp_path / "curves.png").read_bytes().startswith(PNG_MAGIC)
    assert xml.etree.ElementTree.parse(tmp_path / "curves.svg").getroot().tag.endswith("svg")
    with pytest.raises(ConfigError, match=r"curves.txt: give a name that ends with one of .png, .svg"):
        plot_groups(groups, tmp_path / "curves.txt")
    with pytest.raises(RunDirectoryError, match=r"curves.png cannot be written: No such file or directory"):
        plot_groups(groups, tmp_path / "nowhere" / "curves.png")


def test_without_matplotlib_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_group(tmp_path, [1.0])
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)  # what Python does for a package that is not there
    with pytest.raises(ConfigError, match=r"pip install 'rl-training\[plots\]'"):
        drawn(tmp_path)
