"""What a process loads is part of what it costs: torch belongs to engines alone."""

import subprocess
import sys

import pytest

CONTROL = (
    "dpactors.cli",
    "dpactors.runtime.process",
    "dpactors.runtime.supervisor",
    "dpactors.serving.catalogue",
    "dpactors.http.server",
    "dpactors.simulation.world",
)


@pytest.mark.parametrize("module", CONTROL)
def test_control_code_does_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"


def test_the_command_line_loads_no_web_server_and_no_sockets() -> None:
    code = "import sys, dpactors.cli; print([m for m in ('uvicorn', 'starlette', 'zmq') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
