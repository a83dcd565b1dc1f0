"""What an engine promises about its cache after an update of its weights. A run tests what the engine documents."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.weights import WeightPolicy

POLICIES = {  # by their names on the command line
    "invalidates": WeightPolicy.INVALIDATES,
    "on-reset": WeightPolicy.ON_RESET,
    "in-salt": WeightPolicy.IN_SALT,
}


class WeightPromise(msgspec.Struct, frozen=True, kw_only=True):
    """The policy that an engine documents, what its caller has to do, and the link to the documentation."""

    policy: WeightPolicy
    caller: str
    link: str = ""

    def __str__(self) -> str:
        return f"tested promise: {self.policy.value}: {self.caller}" + (f" ({self.link})" if self.link else "")


def chosen_promise(name: str) -> WeightPromise:
    """Return the promise that the user wants to be tested. `name`: a key of POLICIES."""
    return WeightPromise(policy=POLICIES[name], caller="chosen with --weight-policy, whatever the engine documents")


UNDOCUMENTED = WeightPromise(
    policy=WeightPolicy.ON_RESET,
    caller="the engine documents nothing about its cache after an update, so a cache reset must follow each update",
)
