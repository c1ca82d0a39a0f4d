"""The images' recipes: what they copy exists, every instruction is valid, and the manifests start what is in them."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib

import pytest

from tests.infra.overlays import TOP, of_kind


@pytest.mark.parametrize("image", ["gateway", "bundle"])
def test_recipes_copy_existing_sources_and_run_as_an_ordinary_user(image: str) -> None:
    path = TOP / "infra/images" / f"{image}.Dockerfile"
    text = path.read_text()
    allowed = {line[1:] for line in (TOP / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"(?m)^COPY (?!--from)(.+)$", text)
    sources = {source for line in copied for source in line.split()[:-1]}
    assert sources
    for source in sources:
        assert (TOP / source).exists(), source
        assert source.split("/")[0] in allowed, f"{source} is not sent to the builder"
    wheel = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for forced in wheel["force-include"]:
        assert any(forced == source or forced.startswith(f"{source}/") for source in sources), f"pip install fails without {forced}"
    bases = re.findall(r"(?m)^FROM (\S+)", text)
    assert set(bases) <= {"${BASE}", "scratch"}
    assert "ARG BASE=python:3.11-slim" in text
    assert not re.search(r"https?://|[a-z]\.(io|com|net)/", text)
    assert re.search(r"(?m)^USER [1-9]\d+:[1-9]\d+$", text.split("FROM")[-1]), "a number, or runAsNonRoot cannot be checked"
    assert (bases[-1] == "scratch") == (image == "bundle")


@pytest.mark.parametrize("image", ["gateway", "bundle"])
def test_every_instruction_of_a_recipe_is_valid(image: str) -> None:
    """Parsed as a builder parses them; nothing is built."""
    text = re.sub(r"(?m)^\s*#.*\n", "", (TOP / "infra/images" / f"{image}.Dockerfile").read_text()).replace("\\\n", " ")
    stages: list[str] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        assert word in {"ARG", "FROM", "WORKDIR", "RUN", "COPY", "USER", "ENV", "EXPOSE", "ENTRYPOINT", "CMD"}, line
        assert rest.strip(), line
        match word:
            case "FROM":
                found = re.fullmatch(r"\S+(?: AS ([a-z]+))?", rest)
                assert found, line
                stages.append(found[1] or "")
            case "COPY":
                parts = rest.split()
                source = parts[0].removeprefix("--from=") if parts[0].startswith("--") else None
                assert source is None or source in stages[:-1], f"{line}: no stage of that name before"
                assert len(parts) >= (3 if source else 2), line
            case "ENTRYPOINT" | "CMD":
                assert all(isinstance(part, str) for part in json.loads(rest)), f"{line}: the exec form, or signals go to a shell"
            case "RUN":
                assert subprocess.run(["sh", "-n", "-c", rest], check=False).returncode == 0, line
    assert len(stages) >= 2, "the stage that builds is not the one that ships"
    assert stages[-1] == ""


def test_the_image_starts_what_the_manifests_name() -> None:
    arguments = {
        container["args"][0] for one in of_kind("dev", "Deployment") for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert arguments == {"gateway", "gateway.controller"}
    assert all((TOP / argument.replace(".", "/") / "__main__.py").is_file() for argument in arguments)
    assert 'ENTRYPOINT ["/opt/holdfast/bin/python", "-m"]' in (TOP / "infra/images/gateway.Dockerfile").read_text()
