"""Names and ids of sandboxes."""

from __future__ import annotations

import re

from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.model.names import TAG_CHARACTERS, id_of, ids_of, name_of
from gateway.model.records import SANDBOX_NAME
from session_agent.node.settings import MAX_SANDBOX_ID

names = st.from_regex(SANDBOX_NAME, fullmatch=True)
owners = st.text(min_size=1, max_size=64)


@given(owners, names)
def test_an_id_is_a_name_and_its_owners_tag(owner: str, name: str) -> None:
    id_ = id_of(owner, name)
    assert name_of(owner, id_) == name
    assert len(id_) == len(name) + 1 + TAG_CHARACTERS <= MAX_SANDBOX_ID
    assert re.fullmatch("[a-z2-7]+", id_.removeprefix(f"{name}-")), "part of a host's name, and of a label's value"
    assert id_of(owner, name) == id_, "the same in every process, and after a wipe of the store"


@given(owners, owners, names, names)
def test_ids_of_two_owners_or_names_differ(owner: str, other: str, name: str, second: str) -> None:
    assume((owner, name) != (other, second))
    assert id_of(owner, name) != id_of(other, second)


@given(owners, names)
def test_an_id_is_not_looked_up_as_a_name(owner: str, name: str) -> None:
    """Else a step on a sandbox that does not exist would be made on the owner's other one."""
    assert list(ids_of(owner, name)) == [id_of(owner, name), name]
    assert list(ids_of(owner, id_of(owner, name))) == [id_of(owner, id_of(owner, name))]
