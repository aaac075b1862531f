from conftest import MakeConfig
from test_reference_scripts import check_program, check_weights

SCRIPT = "sac_pendulum_reference"


def test_the_script_ends_with_the_weights_of_the_trainer(make_config: MakeConfig) -> None:
    check_weights(make_config, "sac", SCRIPT)


def test_the_script_runs_and_fits_on_one_page() -> None:
    check_program(SCRIPT)
