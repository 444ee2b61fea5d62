"""`dream.launch`: the launcher as a function, for notebooks and tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def launch(
    function: Callable[..., Any],
    /,
    *args: Any,
    n: int = 2,
    framework: str | None = None,
    strategy: str | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    **kwargs: Any,
) -> list[Any]:
    """Call `function(*args, **kwargs)` on `n` fresh ranks; their results, in rank order.

    framework, strategy: as `dream run --framework` and `--strategy` take them.
    timeout: seconds for the whole job; None for no limit.
    env: added to this process's environment for the ranks.
    Raises WorkerFailed with `rank` and `traceback` where a rank fails.
    """
    from dream.launch.calls import call  # on use: `import dream` stays quick

    return call(
        function,
        args,
        kwargs,
        n=n,
        framework=framework,
        strategy=strategy,
        timeout=timeout,
        env=env,
    )
