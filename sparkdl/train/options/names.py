"""Names of options that do not exist: the nearest one, and what other libraries' names are called here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_LEAST = 0.6
OF_TRAINER: Mapping[str, str] = {
    **dict.fromkeys(
        ("epochs", "epoch", "maxepoch", "maxepochs", "numepochs", "numtrainepochs"), "end_when=MaxEpoch({})"
    ),
    **dict.fromkeys(("iterations", "maxiter", "maxsteps", "steps"), "end_when=MaxIteration({})"),
    **dict.fromkeys(("lr", "learningrate"), "optimizer=partial(torch.optim.Adam, lr={})"),
    **dict.fromkeys(("criterion", "lossfn", "lossfunction"), "loss=..."),
    **dict.fromkeys(("callbacks",), "hooks=..."),
    **dict.fromkeys(("scheduler", "lrscheduler"), "schedule=..."),
}
"""What names of other libraries are in a Trainer."""

OF_ESTIMATORS: Mapping[str, str] = {
    **dict.fromkeys(("epochs", "numepochs", "numtrainepochs"), "maxEpochs={}"),
    **dict.fromkeys(("iterations", "steps", "maxsteps"), "maxIter={}"),
    **dict.fromkeys(("lr",), "learningRate={}"),
    **dict.fromkeys(("criterion", "lossfn", "lossfunction"), "loss=..."),
    **dict.fromkeys(("callbacks",), "hooks=..."),
    **dict.fromkeys(("scheduler", "lrscheduler"), "schedule=..."),
}
"""What they are in an estimator."""


def meant(name: str, value: object, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """Return what a name that does not exist may mean, as a sentence in brackets; empty if nothing is near.

    ``elsewhere`` has what names of other libraries, small and without underscores, are here.
    """
    plain = _plain(name)
    if plain in elsewhere:
        return f" ({name}={value!r:.40} is {elsewhere[plain].format(f'{value!r:.40}')} here)"
    by_plain = {_plain(there): there for there in known}
    near = difflib.get_close_matches(plain, by_plain, 1, _LEAST)
    return f" (did you mean {by_plain[near[0]]}?)" if near else ""


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
