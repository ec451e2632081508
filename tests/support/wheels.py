"""Build wheels and sdists of `gidd` and of every folder of packages/, and check what they hold.

    python tests/support/wheels.py dist

A wheel must hold every file of the project's `src`, the license and nothing else, and the sdist
must build the same wheel. All versions must be equal. base_install.py uses the installed wheels.
"""

import email
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def projects() -> list[Path]:
    """Return the folders of all distributions, `gidd` first."""
    return [ROOT, *sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))]


def build(project: Path, out: Path, *targets: str) -> None:
    """Build an sdist or a wheel of a folder with a pyproject.toml."""
    kinds = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *kinds]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert done.returncode == 0, f"{project}: {done.stdout}{done.stderr}"


def one_file(folder: Path, pattern: str) -> Path:
    """Return the only file of a folder whose name matches."""
    (found,) = folder.glob(pattern)
    return found


def source_files(project: Path) -> set[str]:
    """Return the files below `src`, without what git ignores."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "src"]
    listed = subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)
    names = {name for name in listed.stdout.splitlines() if (project / name).is_file()}
    assert names, f"{project}: git lists no file below src"
    return {name.removeprefix("src/") for name in names}


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def require_equal(what: str, found: set[str], expected: set[str]) -> None:
    """Fail with the names that one set has and the other has not."""
    missing, added = sorted(expected - found), sorted(found - expected)
    assert not missing and not added, f"{what}: missing {missing}, not expected {added}"


def check(project: Path, out: Path) -> str:
    """Build a project to `out`, check wheel and sdist; return the version."""
    settings = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stem = settings["name"].replace("-", "_")
    sources = source_files(project)
    build(project, out, "sdist", "wheel")
    wheel, sdist = one_file(out, f"{stem}-[0-9]*.whl"), one_file(out, f"{stem}-[0-9]*.tar.gz")
    version = sdist.name.removeprefix(f"{stem}-").removesuffix(".tar.gz")
    info = f"{stem}-{version}.dist-info"

    files = contents(wheel)
    licenses = {f"licenses/{name}" for name in settings["license-files"]}
    assert "licenses/LICENSE" in licenses, f"{project}: license-files must name LICENSE"
    described = {"METADATA", "WHEEL", "RECORD"} | licenses
    if settings.keys() & {"scripts", "entry-points"}:
        described.add("entry_points.txt")
    require_equal(wheel.name, set(files), sources | {f"{info}/{name}" for name in described})
    different = [name for name in sources if files[name] != (project / "src" / name).read_bytes()]
    assert not different, f"{wheel.name}: not as in the source tree: {different}"
    metadata = email.message_from_bytes(files[f"{info}/METADATA"])
    assert metadata["License-Expression"] == "Apache-2.0", f"{wheel.name}: no license"
    assert metadata["Description-Content-Type"] == "text/markdown", f"{wheel.name}: no README"

    with tempfile.TemporaryDirectory() as folder, tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
        build(Path(folder) / f"{stem}-{version}", Path(folder), "wheel")
        again = contents(one_file(Path(folder), "*.whl"))
    assert again == files, f"{sdist.name} builds another wheel than the source tree"
    for path in (wheel, sdist):
        print(f"ok: {path.name}, {len(sources)} files of src, {path.stat().st_size / 1e6:.2f} MB")
    return version


def main() -> None:
    """Build and check every distribution."""
    out = Path(sys.argv[1]).resolve()
    versions = {project.name: check(project, out) for project in projects()}
    assert len(set(versions.values())) == 1, f"versions must be equal, got {versions}"


if __name__ == "__main__":
    main()
