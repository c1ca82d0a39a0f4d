"""Names, labels and annotations of everything this runtime makes.

Owns how a sandbox's id becomes a pod's name and a label's value. The id itself is never read back from either: it stands in the
annotation ``RECORD``. Pure; called by every module beside it, and by the manifests in ``infra`` by agreement.
"""

from __future__ import annotations

import hashlib
import re

MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
SANDBOX = "holdfast.dev/sandbox"
EGRESS = "holdfast.dev/egress"
POOL = "holdfast.dev/pool"
PROFILE = "holdfast.dev/profile"
"""Label: the profile a pod was made with; none stands for ``UNLABELLED``, the only one there once was."""
UNLABELLED = "restricted"
ROLE = "holdfast.dev/canary-role"
MADE_BY = "holdfast.dev/made-by"
RECORD = "holdfast.dev/record"
NETWORK = "holdfast.dev/network"
"""Annotation: what the sandbox may reach, as REST spells it; changes while it runs."""
ENDING = "holdfast.dev/ending"
"""Annotation: why the service itself is about to end a running sandbox, as a reason of ``pods.status.ENDINGS``."""
USED_AT = "holdfast.dev/used-at"
"""Annotation of a policy: when a sandbox was last given it, in whole seconds since the epoch."""
PIDS = "holdfast.dev/pids"
PREPULL = "holdfast.dev/prepull"
"""Label of what pulls an image ahead: the name of its DaemonSet."""
KEPT = "holdfast.dev/kept"
"""Label of what pulls an image ahead because the pools file says so, and goes when it does no more."""
IMAGE = "holdfast.dev/image"
SPEC = "holdfast.dev/spec"
"""Annotation: a hash of what its pods were made like."""

SELECTOR = f"{MANAGED_BY}=holdfast,{COMPONENT}=sandbox"
PREPULL_SELECTOR = f"{MANAGED_BY}=holdfast,{COMPONENT}=prepull"
CONTAINER = "sandbox"
NO_EGRESS = "none"
"""Value of the label ``EGRESS`` where nothing may be reached: no policy selects it."""

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def pod_name(sandbox_id: str) -> str:
    """``hf-<id>``; a hash where the id is no DNS label. The two cannot meet: ``hx-`` begins only hashes."""
    return f"hf-{sandbox_id}" if _DNS_LABEL.fullmatch(sandbox_id) else f"hx-{_hash(sandbox_id)}"


def prepull_name(image: str) -> str:
    """The DaemonSet that pulls this image ahead."""
    return f"hf-pull-{_hash(image)}"


def label_value(text: str) -> str:
    """``text`` as a label's value; a hash where it cannot be one."""
    return text if _LABEL_VALUE.fullmatch(text) else f"hx-{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
