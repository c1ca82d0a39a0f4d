"""Names, labels and annotations of every object this runtime creates.

Owns how a sandbox's id becomes a pod's name and a label's value. The id is never parsed back from either: it is stored in the annotation
``RECORD``. Pure; used by every module of the package. The manifests in ``infra`` repeat some of the names.
"""

from __future__ import annotations

import hashlib
import re

MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "app.kubernetes.io/component"
SANDBOX = "holdfast.dev/sandbox"
"""Label: the sandbox's id; the next two are its name and owner, for people."""
NAME = "holdfast.dev/name"
OWNER = "holdfast.dev/owner"
EGRESS = "holdfast.dev/egress"
POOL = "holdfast.dev/pool"
PROFILE = "holdfast.dev/profile"
"""Label: the profile a pod was created with."""
ROLE = "holdfast.dev/canary-role"
MADE_BY = "holdfast.dev/made-by"
RECORD = "holdfast.dev/record"
NETWORK = "holdfast.dev/network"
"""Annotation: what the sandbox may reach, in the form REST uses. Changes at run time."""
ENDING = "holdfast.dev/ending"
"""Annotation: why the service is about to end a running sandbox, as a reason of ``pods.status.ENDINGS``."""
USED_AT = "holdfast.dev/used-at"
"""Annotation of a policy: when it was last assigned to a sandbox, in whole seconds since the epoch."""
PIDS = "holdfast.dev/pids"
PREPULL = "holdfast.dev/prepull"
"""Label of the pods that pull an image in advance: the name of their DaemonSet."""
KEPT = "holdfast.dev/kept"
"""Label of DaemonSets that follow the pools file: they are removed when the file no longer lists their image."""
IMAGE = "holdfast.dev/image"
SPEC = "holdfast.dev/spec"
"""Annotation: a hash of the DaemonSet's pod template."""

SELECTOR = f"{MANAGED_BY}=holdfast,{COMPONENT}=sandbox"
PREPULL_SELECTOR = f"{MANAGED_BY}=holdfast,{COMPONENT}=prepull"
CONTAINER = "sandbox"
BUNDLE_VOLUME = "holdfast-bundle"
NO_EGRESS = "none"
"""Value of the label ``EGRESS`` where nothing may be reached: no policy selects it."""

_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,58}[a-z0-9])?")
_HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def pod_name(sandbox_id: str) -> str:
    """``hf-<id>``, or ``hx-<hash>`` where the id is not a DNS label: the prefixes keep the two forms apart."""
    return f"hf-{sandbox_id}" if _DNS_LABEL.fullmatch(sandbox_id) else f"hx-{_hash(sandbox_id)}"


def host_name(name: str) -> str:
    """The host name of a pod whose sandbox has this name; "" where only the pod's own can be one."""
    return name if _HOST_NAME.fullmatch(name) else ""


def prepull_name(image: str) -> str:
    """The name of the DaemonSet that pulls this image in advance."""
    return f"hf-pull-{_hash(image)}"


def label_value(text: str) -> str:
    """``text`` if it is a valid value of a label, else a hash of it."""
    return text if _LABEL_VALUE.fullmatch(text) else f"hx-{_hash(text)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:40]
