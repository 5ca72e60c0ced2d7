"""Settings that a run wrote to a YAML file, compared with those of a run that would resume it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mb_config.container.yaml_file import parse_yaml
from mb_config.errors import ConfigReadError, ConfigurationError
from mb_config.overrides.provenance import paths_of_run


class SavedSettingsError(ConfigurationError, ValueError):
    """Saved settings that cannot be read."""


class SerializableConfig(Protocol):
    """Configuration that returns itself as plain data, such as a `ConfigContainer`."""

    def to_dict(self, *, defaults: bool = True) -> dict[str, Any]:
        """Return all fields, or those that differ from their default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedSettings:
    """Settings in the file that an earlier run wrote, if there was one.

    >>> SavedSettings(file=Path("runs/a/run_config.yaml")).section("train")
    {}
    """

    file: Path
    """YAML file of a configuration; may be missing."""

    content: str | None = None
    """Content of the file, if it is not on this machine; None: the file is read."""

    ignored: Collection[str] = ()
    """Paths that are not compared."""

    fix: str = "Restore the file, or remove it."
    """Advice at the end of the message about an unreadable file."""

    def read(self) -> Mapping[str, Any] | None:
        """Return the settings; None if there is no file.

        Raises:
            SavedSettingsError: The file is damaged.
        """
        if self.content is None and not self.file.exists():
            return None
        try:
            text = self.file.read_text(encoding="utf-8") if self.content is None else self.content
            if not text.strip():
                raise ConfigReadError("it is empty")
            return parse_yaml(text, name="").data
        except (ConfigReadError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())
            raise SavedSettingsError(
                f"{self.file}: cannot be read ({reason}), so its settings cannot be compared with those of this run. "
                f"{self.fix}"
            ) from error

    def section(self, name: str) -> Mapping[str, Any]:
        """Return a section; an empty one if it or the file is missing or damaged."""
        try:
            section = (self.read() or {}).get(name)
        except SavedSettingsError:
            return {}
        return section if isinstance(section, Mapping) else {}

    def differences(self, config: SerializableConfig) -> dict[str, tuple[Any, Any]]:
        """Return dotted path -> (saved, current) for each field that differs; none without a file.

        A field that the file lacks, because an earlier version wrote it, differs only if it was set.

        Raises:
            SavedSettingsError: The file is damaged.
        """
        saved = self.read()
        if saved is None:
            return {}
        current, chosen = config.to_dict(), config.to_dict(defaults=False)
        for path, written in paths_of_run(config).items():  # computed for this run: compared as a file has it
            section, _, key = path.rpartition(".")
            for settings in (current, chosen):
                if written is not None and section in settings:
                    settings[section][key] = written
        return settings_differences(saved, current, chosen=chosen, ignored=self.ignored)


def settings_differences(
    saved: Mapping[str, Any],
    wanted: Mapping[str, Any],
    *,
    chosen: Mapping[str, Any] | None = None,
    ignored: Collection[str] = (),
) -> dict[str, tuple[Any, Any]]:
    """Return dotted path -> (saved, wanted) for every leaf in which two configurations differ.

    Args:
        saved: The configuration that was written first, as `ConfigContainer.to_dict` returns it.
        wanted: The other one.
        chosen: The non-default part of `wanted` (`to_dict(defaults=False)`). A field that `saved` lacks, because an
            earlier version wrote it, is not a difference if it has its default; None counts every such field.
        ignored: Paths that are not compared.
    """
    old, new = _leaves(saved), _leaves(wanted)
    paths = [path for path in dict.fromkeys((*old, *new)) if path not in ignored]
    if chosen is not None:
        known = _leaves(chosen)
        later = {path for path in new if path not in old and path not in known}
        paths = [path for path in paths if path not in later or _is_chosen(path, saved=saved, chosen=chosen)]
    return {path: (old.get(path), new.get(path)) for path in paths if old.get(path) != new.get(path)}


def _is_chosen(path: str, *, saved: Mapping[str, Any], chosen: Mapping[str, Any]) -> bool:
    """Return whether the section of a field was added by the user."""
    section = path.partition(".")[0]
    return section in chosen and not isinstance(saved.get(section), Mapping)


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return dotted path -> leaf; lists and empty mappings are leaves."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        leaves.update(_leaves(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value})
    return leaves


def difference_lines(differences: Mapping[str, tuple[Any, Any]]) -> str:
    """Return one indented line per difference, with both values."""
    return "\n".join(f"  {path}: {old!r} there, {new!r} now" for path, (old, new) in differences.items())


def changed_settings_message(
    source: Path | str,
    differences: Mapping[str, tuple[Any, Any]],
    *,
    fixed: Sequence[str] = (),
    other: str = "another folder with --out",
) -> str:
    """Return the message that a run folder or a checkpoint has other settings, for a command that would resume it.

    Args:
        source: The run folder or the checkpoint.
        differences: Dotted path -> (saved, current), as `SavedSettings.differences` returns them.
        fixed: Paths among them that cannot change, because they determine the shape of a checkpoint's weights.
        other: What a separate run needs.
    """
    fix = f"Choose {other}, or resume with the new settings with --resume-with-changes."
    if fixed:
        fix = (
            f"{', '.join(fixed)} cannot be changed here: the shapes of the stored weights follow from them. Restore "
            f"the old values, or choose {other}."
        )
    lines = difference_lines(differences)
    return f"{source}: holds a run with other settings, and resuming would mix the two.\n{lines}\n{fix}"
