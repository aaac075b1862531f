# `make train` and `make test` set everything up first; the second time that takes no time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: train test check format benchmark chaos bench clean

train: $(READY)
	$(BIN)/rl-training train --config configs/ppo/cartpole.yaml

test: $(READY)
	$(BIN)/pytest --numprocesses 2

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Trains the shipped presets over five seeds each and renews their receipts; takes days of CPU time, SUITE=classic an hour.
SUITE ?= classic
benchmark: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[box2d,mujoco]"
	$(BIN)/rl-training benchmark $(SUITE) --receipts src/rl_training/receipts --document docs/benchmarks.md

# Kills runs at random moments, resumes them, and compares with runs that were never killed; takes about forty minutes.
chaos: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[box2d,mujoco]"
	$(BIN)/python benchmarks/chaos.py --output docs/chaos.md

# Times training beside Stable-Baselines3; takes about an hour on two cores, which must have nothing else to do.
bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench,mujoco,plots]"
	$(BIN)/python benchmarks/speed.py --growth --further-runs 8 --output benchmarks/results/speed.json \
		--chart docs/speed.png --document docs/performance.md

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev,plots]"
	touch $(READY)
