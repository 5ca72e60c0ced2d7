"""Defaults of Slurm jobs for each cluster, from a YAML file. Requires PyYAML (extra `cli`)."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from mb_launch.errors import ClustersFileError, nearest
from mb_launch.slurm.job import SlurmJob
from mb_schema.yaml_settings import load_settings

KEYS = tuple(field.name for field in fields(SlurmJob))
"""Keys of a cluster: the fields of `SlurmJob`."""


def read_cluster(file: Path, name: str) -> dict[str, Any]:
    """Return the defaults of a cluster: values by the names of the fields of `SlurmJob`.

    The file maps names of clusters to such values:

    .. code-block:: yaml

        hopper:
          partition: batch
          gpus_per_node: 8

    Raises:
        ClustersFileError: The file cannot be read, has no such cluster, or has an unknown key in any cluster.
    """
    try:
        clusters = load_settings(file.read_text(encoding="utf-8"), yaml)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ClustersFileError(f"{file}: cannot be read ({' '.join(str(error).split())}).") from error
    if not isinstance(clusters, dict) or not all(isinstance(each, dict) for each in clusters.values()):
        raise ClustersFileError(
            f"{file}: is not a mapping of clusters to their settings. Write NAME: then KEY: VALUE."
        )
    for cluster, settings in clusters.items():
        for key in settings:
            if key not in KEYS:
                raise ClustersFileError(f"{file}: {cluster}.{key} is unknown. {nearest(key, KEYS)}")
    if name not in clusters:
        raise ClustersFileError(f"{file}: has no cluster {name!r}. {nearest(name, clusters)}")
    return dict(clusters[name])
