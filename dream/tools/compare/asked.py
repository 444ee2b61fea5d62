"""What the command line says about a script, checked."""

from __future__ import annotations

from collections.abc import Sequence

from dream._errors import ConfigurationError
from dream.launch.command import script_command


def names(option: str, text: str) -> list[str]:
    """Of a comma-separated list; none where the option was not given."""
    found = split(text)
    if text and not found:
        raise ConfigurationError(
            f"The list names nothing. Received: {option} {text!r}. Give a name, or leave it out."
        )
    return found


def script(words: Sequence[str], **options: object) -> tuple[str, ...]:
    """What each rank's interpreter is given; empty where no script is named. options: those that
    mean something for embedded tasks only, None or False where they were not given."""
    if not words:
        return ()
    name, *arguments = words
    if name.startswith("-"):
        raise ConfigurationError(f"No such option. Received: {name}. See dream compare --help.")
    for option, value in options.items():
        if value is not None and value is not False:  # 0 is a value
            raise ConfigurationError(
                f"A script brings its own task. Received: {name}, --{option.replace('_', '-')} "
                f"{value}. Leave one of them out."
            )
    return script_command(name, arguments, module=False)


def split(text: str) -> list[str]:
    """The items of a comma-separated list. `name=value` goes with the item before it, for a
    strategy's own options are separated by commas too."""
    items: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        if items and "=" in part and ":" not in part:
            items[-1] += f",{part}"
        elif part:
            items.append(part)
    return items
