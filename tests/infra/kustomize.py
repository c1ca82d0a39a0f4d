"""Renders our overlays without kubectl: it knows the part of kustomize that they use and raises an error for any other.

Owns resources, components, labels of objects, images, replicas, patches (strategic merge by the keys below, or JSON 6902
add/replace/remove). A test compares it with `kubectl kustomize` where there is one. Called by the tests of the manifests.
"""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

_load_all = functools.partial(yaml.load_all, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))

_KNOWN = {"apiVersion", "kind", "resources", "components", "labels", "images", "replicas", "patches"}
# List → the key that identifies its items, as Kubernetes' types declare it. Other lists are replaced completely.
_MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "ports": "containerPort",
}


class RenderError(Exception):
    """A kustomization uses what this renderer does not know, or names something that does not exist."""


def render(folder: Path) -> list[Manifest]:
    """What `kubectl kustomize folder` would print, in no particular order."""
    return _accumulate(folder, [])


def _accumulate(folder: Path, resources: list[Manifest]) -> list[Manifest]:
    body = next(_load_all((folder / "kustomization.yaml").read_text()))
    if unknown := set(body) - _KNOWN:
        raise RenderError(f"{folder}: {', '.join(sorted(unknown))}: not known to this renderer")
    for name in body.get("resources", ()):
        path = folder / name
        resources += render(path) if path.is_dir() else _documents(path)
    for name in body.get("components", ()):
        _accumulate(folder / name, resources)
    for patch in body.get("patches", ()):
        _patch(folder, resources, patch)
    for label in body.get("labels", ()):
        for resource in resources:
            resource["metadata"].setdefault("labels", {}).update(label["pairs"])
    for replica in body.get("replicas", ()):
        for resource in _matching(resources, {"kind": "Deployment|StatefulSet", "name": replica["name"]}):
            resource["spec"]["replicas"] = replica["count"]
    for image in body.get("images", ()):
        _images(resources, image)
    identities = [identity(resource) for resource in resources]
    if len(set(identities)) != len(identities):
        raise RenderError(f"{folder}: the same resource twice in {identities}")
    return resources


def identity(resource: Manifest) -> tuple[str, str, str, str]:
    metadata = resource["metadata"]
    return resource["apiVersion"], resource["kind"], metadata.get("namespace", ""), metadata["name"]


def _documents(path: Path) -> list[Manifest]:
    return [document for document in _load_all(path.read_text()) if document]


def _matching(resources: list[Manifest], target: dict[str, str]) -> list[Manifest]:
    if unknown := set(target) - {"group", "kind", "name"}:
        raise RenderError(f"target by {unknown}: not known to this renderer")
    found = [
        resource
        for resource in resources
        if re.fullmatch(target.get("name", ".*"), resource["metadata"]["name"])
        and re.fullmatch(target.get("group", ".*"), resource["apiVersion"].rpartition("/")[0])
        and re.fullmatch(target.get("kind", ".*"), resource["kind"])
    ]
    if not found:
        raise RenderError(f"nothing matches {target}")
    return found


def _patch(folder: Path, resources: list[Manifest], patch: dict[str, Any]) -> None:
    text = (folder / patch["path"]).read_text() if "path" in patch else patch["patch"]
    for document in _load_all(text):
        if isinstance(document, list):
            for resource in _matching(resources, patch["target"]):
                for step in document:
                    _step(resource, step)
            continue
        for resource in [one for one in resources if identity(one) == identity(document)] or _missing(document):
            _merge(resource, document)


def _missing(document: Manifest) -> list[Manifest]:
    raise RenderError(f"a patch is for {identity(document)}, which is not there")


def _step(resource: Manifest, step: dict[str, Any]) -> None:
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in step["path"].lstrip("/").split("/")]
    place: Any = resource
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    match step["op"], place:
        case "add", list():
            place.insert(len(place) if last == "-" else int(last), step["value"])
        case "add", dict():
            place[last] = step["value"]
        case "replace", dict() if last in place:
            place[last] = step["value"]
        case "remove", dict() if last in place:
            del place[last]
        case _:
            raise RenderError(f"{step}: cannot be done here")


def _merge(into: dict[str, Any], patch: dict[str, Any]) -> None:
    for name, value in patch.items():
        if value is None:
            into.pop(name, None)
        elif isinstance(value, dict):
            _merge(into.setdefault(name, {}), value)
        elif isinstance(value, list) and (key := _MERGE_KEYS.get(name)):
            _merge_list(into.setdefault(name, []), value, key)
        else:
            into[name] = copy.deepcopy(value)


def _merge_list(into: list[dict[str, Any]], patch: list[dict[str, Any]], key: str) -> None:
    """Items that the patch names come first, as in kustomize; the others keep their order."""
    first = []
    for item in patch:
        present = next((one for one in into if one[key] == item[key]), {})
        if present:
            into.remove(present)
        if item.get("$patch") != "delete":
            _merge(present, item)
            first.append(present)
    into[:0] = first


def _images(node: Any, image: dict[str, str]) -> None:
    if isinstance(node, list):
        for item in node:
            _images(item, image)
    elif isinstance(node, dict):
        for container in (*node.get("containers", ()), *node.get("initContainers", ())):
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
        for value in node.values():
            _images(value, image)
