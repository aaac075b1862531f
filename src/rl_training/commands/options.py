"""Options that several commands have."""

from typing import Annotated

import typer

TrustOption = Annotated[
    bool, typer.Option("--trust", help="Run the code of an environment's module in the working directory.")
]
