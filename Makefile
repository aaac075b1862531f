# Every target except `clean` first creates the virtual environment, if it is missing or out of date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# All tests of a file run in one process, so that they share what is costly to make: runs, compiled updates, clusters.
# Many tests wait for other processes, so three test processes are faster than two on two cores.
PYTEST := $(BIN)/pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

.PHONY: train test test-slow check format benchmark chaos bench scale clean

train: $(READY)
	$(BIN)/rl-training train --config configs/ppo/cartpole.yaml

test: $(READY)
	$(PYTEST)

# The tests that `make test` leaves out: Ray clusters, compilers, processes that are killed again and again.
test-slow: $(READY)
	$(PYTEST) -m slow

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(PYTEST)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Train the presets of SUITE with five seeds each and renew their receipts. SUITE=classic takes about an
# hour, and all suites together take days of CPU time.
SUITE ?= classic
benchmark: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[box2d,mujoco]"
	$(BIN)/rl-training benchmark $(SUITE) --receipts src/rl_training/receipts --document docs/benchmarks.md

# Kill runs, and the collectors and nodes of a Ray cluster, at random moments, and compare the results with those of
# undisturbed runs. Takes about an hour.
chaos: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[box2d,mujoco,ray]"
	$(BIN)/python benchmarks/chaos.py --output docs/chaos.md
	$(BIN)/python benchmarks/chaos_cluster.py --output docs/chaos.md

# Measure training speed next to Stable-Baselines3. Takes about an hour on two cores that are otherwise idle.
bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[bench,mujoco,plots]"
	$(BIN)/python benchmarks/speed.py --growth --further-runs 8 --output benchmarks/results/speed.json \
		--chart docs/speed.png --document docs/performance.md

# Measure what collectors cost and gain. Takes roughly half an hour on two cores that are otherwise idle.
scale: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[mujoco,plots,ray]"
	$(BIN)/python benchmarks/scale.py --output benchmarks/results/scale.json --chart docs/scale.png \
		--document docs/scale.md

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt --editable ".[dev,plots]"
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true # pip uses one core; not all files of packages compile
	touch $(READY)
