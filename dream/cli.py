"""The command `dream`. No framework is imported here, and no command's code before it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dream._errors import ConfigurationError, DreamError


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line. An error of dream's own is one message: exit code 2 for what was
    asked for wrongly, 1 for what failed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        raise SystemExit(_run(arguments))
    except DreamError as error:
        print(f"dream: {error}", file=sys.stderr)
        raise SystemExit(2 if isinstance(error, ConfigurationError) else 1) from None


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["run"]:
        # every start waits for it, and the other commands' parser takes as long to import as
        # Python to start
        from dream.launch.command import main as run

        return run(arguments[1:])
    if arguments[:1] == ["verify"]:  # the other commands' parser drops the `--` before a script's
        from dream.tools.verify.main import main as verify

        return verify(arguments[1:])
    if arguments[:1] == ["profile"]:
        from dream.tools.profile.main import main as profile

        return profile(arguments[1:])
    from dream._commands import app

    app(arguments, prog_name="dream")
    return 0


if __name__ == "__main__":
    main()
