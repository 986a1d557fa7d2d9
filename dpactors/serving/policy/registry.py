"""Policies by the names that topology files write."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from dpactors.serving.policy import sglang
from dpactors.serving.policy.choice import Policy
from dpactors.serving.policy.least_work import least_work
from dpactors.serving.policy.power_of_two import power_of_two
from dpactors.serving.policy.prefix_affinity import prefix_affinity
from dpactors.serving.policy.vllm import vllm, vllm_classic


class PolicySettings(Protocol):
    """The settings that policies read."""

    @property
    def policy(self) -> str: ...
    @property
    def policy_seed(self) -> int: ...
    @property
    def prefix_tokens(self) -> int: ...
    @property
    def pd_role(self) -> str: ...


POLICIES: Mapping[str, Callable[[PolicySettings], Policy]] = {
    "least_work": lambda _: least_work,
    "prefix_affinity": lambda settings: partial(prefix_affinity, prefix_tokens=settings.prefix_tokens),
    "power_of_two": lambda settings: partial(power_of_two, seed=settings.policy_seed),
    "vllm": lambda _: vllm,
    "vllm_classic": lambda _: vllm_classic,
    "auto": lambda settings: sglang.auto(settings.pd_role),
    "round_robin": lambda _: sglang.round_robin,
    "follow_bootstrap_room": lambda _: sglang.follow_bootstrap_room,
    "total_requests": lambda _: sglang.total_requests,
    "total_tokens": lambda _: sglang.total_tokens,
}


def policy_of(settings: PolicySettings) -> Policy:
    """The policy that a client's settings name, with what it needs of them."""
    return POLICIES[settings.policy](settings)
