"""How far it is from the command line to a gradient step, for somebody who reads the code."""

import math

import pytest
from trace_update import trace_update


def test_the_way_from_the_command_line_to_a_gradient_step_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.runtime.progress._LINE_SECONDS", math.inf)  # a slow machine would print on the way
    trace = trace_update()
    assert trace.calls[0] == ("cli/app.py", "main")
    assert trace.calls[-1][0] == "algorithms/ppo.py"
    assert len(trace.calls) <= 10
    assert "runtime/collector.py" in trace.files
    assert len(trace.files) <= 22
    assert "policies/networks/mlp.py" in trace.step_files
    assert len(trace.step_files) <= 5
    assert trace.validations == 1
