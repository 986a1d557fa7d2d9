"""Floor 7: the command line. Parses, then calls one function; CLI contract in docs/reference/cli.md."""

import sys
from typing import NoReturn

from cyclopts import App, CycloptsError

from dpactors.cli import exploring, files, keys, running, start, watching
from dpactors.cli.errors import FAILED, INTERRUPTED, REFUSED, Refusal

HELP = (
    "Data-parallel LLM serving as typed actors: one TOML file brings a deployment up, keeps it up and shows what flows."
)


def _version() -> str:
    from dpactors import __version__

    return __version__


def make_app() -> App:
    """The command line with all its verbs."""
    app = App(name="dpactors", help=HELP, version=_version, help_format="plaintext")
    for verb in (
        files.check,
        files.draw,
        files.plan,
        start.up,
        running.ps,
        running.down,
        watching.logs,
        watching.trace,
        exploring.explore,
    ):
        app.command(verb)
    app.command(running.fault)
    app.command(keys.keys)
    return app


def main() -> NoReturn:
    """Run one verb; exit 0 done, 1 failed, 2 refused, 130 interrupted."""
    try:
        code = make_app()(sys.argv[1:], exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        print(f"dpactors: {error}", file=sys.stderr)
        print("See dpactors --help, or dpactors VERB --help for one example.", file=sys.stderr)
        sys.exit(REFUSED)
    except Refusal as error:
        print(error, file=sys.stderr)
        sys.exit(error.code)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(FAILED)
    sys.exit(code if isinstance(code, int) else 0)
