"""Makes a failing request smaller for as long as it fails."""

import json
from dataclasses import replace

from cases import Case, encode


def smallest(case: Case, fails, budget: int) -> tuple[Case, int]:
    """The smallest form of `case` that `fails`, found in at most `budget` tries; and the number of tries."""
    tries = 0
    for header in list(case.headers):
        if header != "Content-Type" and tries < budget:
            tries += 1
            without = replace(case, headers={name: value for name, value in case.headers.items() if name != header})
            case = without if fails(without) else case
    try:
        body = json.loads(case.body)
    except ValueError:
        return case, tries
    progress = True
    while progress:
        progress = False
        for candidate in smaller(body):
            if tries >= budget:
                return replace(case, body=encode(body)), tries
            tries += 1
            if fails(replace(case, body=encode(candidate))):
                body, progress = candidate, True
                break
    return replace(case, body=encode(body)), tries


def smaller(value):
    """Values that are a little smaller than `value`, the boldest first."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key in ("model", "messages", "prompt", "input"))
        yield from ({key: inner for key, inner in value.items() if key != left_out} for left_out in keys)
        for key in keys:
            yield from ({**value, key: inner} for inner in smaller(value[key]))
    elif isinstance(value, list):
        if len(value) > 3:
            yield value[: len(value) // 2]
            yield value[len(value) // 2 :]
        yield from (value[:at] + value[at + 1 :] for at in range(len(value)))
        for at, inner in enumerate(value):
            yield from (value[:at] + [less] + value[at + 1 :] for less in smaller(inner))
    elif isinstance(value, str) and len(value) > 1:
        yield value[: len(value) // 2]
        yield value[len(value) // 2 :]
        if len(value) < 8:
            yield value[1:]
    elif isinstance(value, int) and not isinstance(value, bool) and value > 2:
        yield value // 2
