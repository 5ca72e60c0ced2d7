"""What CloudAI installs before a test: images, repositories and Python environments. Imports pydantic."""

from pydantic import BaseModel, ConfigDict, Field

MOUNT = "/opt/Megatron-Bridge"
"""Path of the repository in the container."""


class GitRepo(BaseModel):
    """A repository at one commit."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    url: str = Field(repr=False)
    """Address. Not printed, because it may include a password."""
    commit: str
    """Commit, branch or tag."""
    init_submodules: bool = False
    """Check out submodules, too."""
    mount_as: str | None = None
    """Folder of the container over which the clone is mounted; None: not mounted."""


class DockerImage(BaseModel):
    """An image to install."""

    url: str
    """Address or path."""


class PythonExecutable(BaseModel):
    """A Python environment made from a repository."""

    git_repo: GitRepo
    """The repository."""


Installable = DockerImage | PythonExecutable | GitRepo


def select_bridge_repo(repos: list[GitRepo]) -> GitRepo | None:
    """Return the repository of Megatron-Bridge; None if a test has none."""
    return next(
        (
            repo
            for repo in repos
            if "Megatron-Bridge" in repo.url or (repo.mount_as or "").rstrip("/") == MOUNT
        ),
        None,
    )
